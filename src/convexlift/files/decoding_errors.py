"""What the errors of decoders say to a user; on damaged files they raise nearly everything."""

from __future__ import annotations

import struct
import zlib

_SENTENCES = (ValueError, OSError, EOFError, SyntaxError, ImportError, NotImplementedError)
"""Types whose messages were written for people; those of all others concern the decoder's code."""


def reason_of(error: BaseException) -> str:
    """One line about why a file could not be decoded."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if text and isinstance(error, _SENTENCES) and not isinstance(error, UnicodeError):
        return text
    if isinstance(error, struct.error | zlib.error | EOFError):
        return "it is cut short or damaged"
    return f"it is damaged, or of a kind that is not supported ({type(error).__name__})"
