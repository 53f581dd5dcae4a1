"""The shared part of ``ct`` and ``ct_deep``:  min_x  D(A x, y) + gamma R(x)  over x >= 0.

D is the Kullback-Leibler divergence of Poisson data behind the paper's scanner. The paper's
weights are not published, and a dense layer's would take 17 MB: the regularizer is trained first,
with the paper's architecture, on the slices there are.
"""
