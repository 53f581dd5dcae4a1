"""Colours and spacing of the page, light and dark."""

from __future__ import annotations

import base64
from typing import Any

CSS = """
:root { --line-0: #0072b2; --line-1: #d55e00; --line-2: #009e73; --line-3: #cc79a7;
        --line-4: #8a6d00; --line-5: #56708a; --good: #0b7a53; --warn: #a35200; --bad: #b3261e; }
.dark { --line-0: #4db1ec; --line-1: #ff9a4d; --line-2: #3fd6a5; --line-3: #f0a6cf;
        --line-4: #e5c84a; --line-5: #a9bfd4; --good: #3fd6a5; --warn: #ffb066; --bad: #ff8a80; }
.gradio-container { max-width: 1360px !important; width: 100% !important;
                    margin: 0 auto !important; }
.gradio-container .main.fillable { padding: 0.6rem 1.2rem !important; width: 100%; }
.html-container { padding: 0 !important; }
.drop .icon-wrap { display: none !important; }
.drop .wrap { padding: 1.4rem 0 0 !important; font-size: 0.9rem !important;
              min-height: 0 !important;
              flex-flow: row wrap !important; justify-content: center; gap: 0.4rem; }
.actions { position: sticky; bottom: 0; z-index: 5; padding: 0.6rem 0;
           background: var(--body-background-fill); flex-wrap: nowrap !important; }
footer { display: none !important; }
.headline h1 { font-size: 1.7rem; font-weight: 650; letter-spacing: -0.01em; margin: 0.4rem 0 0; }
.headline p { margin: 0.2rem 0 0.3rem; color: var(--body-text-color-subdued); max-width: 62rem; }
.hint { color: var(--body-text-color-subdued); font-size: 0.92rem; }
.banner { border-left: 4px solid var(--border-color-primary); padding: 0.55rem 0.9rem;
          background: var(--background-fill-secondary); border-radius: 4px;
          display: flex; flex-wrap: wrap; gap: 0.15rem 0.7rem; align-items: baseline;
          font-variant-numeric: tabular-nums; min-height: 2.6rem; }
.banner.busy { border-color: var(--line-0); }
.banner.good { border-color: var(--good); } .banner.good b { color: var(--good); }
.banner.partial { border-color: var(--warn); } .banner.partial b { color: var(--warn); }
.banner.bad { border-color: var(--bad); } .banner.bad b { color: var(--bad); }
figure.picture { margin: 0; }
figure.picture img { display: block; width: 100%; height: auto; border-radius: 4px; margin: 0;
                     max-height: 70vh; object-fit: contain; }
figure.pixelated img { image-rendering: pixelated; }
figure.picture figcaption { font-size: 0.85rem; padding-top: 0.3rem;
          color: var(--body-text-color-subdued); font-variant-numeric: tabular-nums; }
.maps { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1rem; }
.maps figure:only-child { max-width: 50%; }
.wide img { max-height: 18rem; object-fit: fill !important; }
.numbers { display: grid; grid-template-columns: repeat(6, minmax(0, 1fr));
           gap: 0.5rem; margin: 0; }
.numbers div { border: 1px solid var(--border-color-primary); border-radius: 4px;
               padding: 0.45rem 0.7rem; }
.numbers dt { font-size: 0.8rem; color: var(--body-text-color-subdued); }
.numbers dd { margin: 0; font-size: 1.12rem; font-weight: 600;
              font-variant-numeric: tabular-nums; white-space: nowrap; }
.numbers dd.more { font-size: 0.8rem; font-weight: 400; color: var(--body-text-color-subdued); }
svg.plot { width: 100%; height: auto; color: var(--body-text-color); display: block; }
svg.plot text { fill: currentColor; font: 13px system-ui, sans-serif; }
.legend { display: flex; flex-wrap: wrap; gap: 0 1.1rem; margin: 0.2rem 0 0.3rem 0.4rem;
          font-size: 0.85rem; }
.legend span { white-space: nowrap; }
svg.plot text.tick { fill: var(--body-text-color-subdued); }
svg.plot .grid { stroke: currentColor; stroke-opacity: 0.13; }
svg.plot .axis { stroke: currentColor; stroke-opacity: 0.5; }
svg.plot .gap { fill: currentColor; fill-opacity: 0.08; stroke: none; }
svg.plot .line { fill: none; stroke-width: 2.2; stroke-linejoin: round;
                 vector-effect: non-scaling-stroke; }
svg.plot .line.line-0 { stroke: var(--line-0); } svg.plot .dot.line-0 { fill: var(--line-0); }
svg.plot .line.line-1 { stroke: var(--line-1); } svg.plot .dot.line-1 { fill: var(--line-1); }
svg.plot .line.line-2 { stroke: var(--line-2); } svg.plot .dot.line-2 { fill: var(--line-2); }
svg.plot .line.line-3 { stroke: var(--line-3); } svg.plot .dot.line-3 { fill: var(--line-3); }
svg.plot .line.line-4 { stroke: var(--line-4); } svg.plot .dot.line-4 { fill: var(--line-4); }
svg.plot .line.line-5 { stroke: var(--line-5); } svg.plot .dot.line-5 { fill: var(--line-5); }
i.swatch { display: inline-block; width: 0.9rem; height: 0.22rem; margin-right: 0.5rem;
           vertical-align: middle; border-radius: 2px; }
i.swatch.line-0 { background: var(--line-0); } i.swatch.line-1 { background: var(--line-1); }
i.swatch.line-2 { background: var(--line-2); } i.swatch.line-3 { background: var(--line-3); }
i.swatch.line-4 { background: var(--line-4); } i.swatch.line-5 { background: var(--line-5); }
.scroll { overflow-x: auto; }
table.standings, table.standings tr { border: 0 !important; }
table.standings { border-collapse: collapse; width: 100%; font-size: 0.92rem;
                  font-variant-numeric: tabular-nums; }
table.standings th, table.standings td { text-align: right; padding: 0.35rem 0.7rem;
                  border: 0; border-bottom: 1px solid var(--border-color-primary);
                  white-space: nowrap; font-weight: 400; }
table.standings thead th { color: var(--body-text-color-subdued); font-size: 0.82rem; }
table.standings tr > th:first-child { text-align: left; font-weight: 600; }
table.standings tr > :last-child { text-align: left; white-space: normal; min-width: 10rem; }
@media (max-width: 900px) { .numbers { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
@media (max-width: 640px) {
  .gradio-container .main.fillable { padding: 0.3rem 0.7rem !important; }
  .numbers { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .maps { grid-template-columns: 1fr; } .maps figure:only-child { max-width: 100%; }
  .headline h1 { font-size: 1.4rem; }
  /* Plots are scaled to the width, and letters with them. */
  svg.plot text { font-size: 17px; } svg.plot.large text { font-size: 22px; }
  .tab-container button { padding: 0 0.55rem !important; }
}
"""

ICON = (
    "data:image/svg+xml;base64,"
    + base64.b64encode(
        b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
        b'<rect width="32" height="32" rx="6" fill="#0072b2"/>'
        b'<path d="M5 7 Q16 34 27 7" fill="none" stroke="#fff" stroke-width="3"/>'
        b'<path d="M7 27 L25 20" stroke="#ffb066" stroke-width="3"/></svg>'
    ).decode()
)

HEAD = f'<link rel="icon" href="{ICON}"><meta name="color-scheme" content="light dark">'


def theme(gradio: Any) -> Any:
    """Fonts of the visitor's own machine: nothing is fetched from elsewhere."""
    themes = gradio.themes
    sans = [themes.Font(name) for name in ("system-ui", "sans-serif")]
    mono = [themes.Font(name) for name in ("ui-monospace", "monospace")]
    base = themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        radius_size="sm",
        spacing_size="sm",
        font=sans,
        font_mono=mono,
    )
    # Small grey letters, dark enough to be read.
    return base.set(
        body_text_color_subdued="*neutral_500", body_text_color_subdued_dark="*neutral_400"
    )
