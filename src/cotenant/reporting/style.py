"""Colors and layout of the report; light and dark."""

from __future__ import annotations

# Paul Tol's "bright" and "muted" schemes: distinct for color-blind readers too.
_COLORS = (
    "4477aa",
    "ee6677",
    "228833",
    "ccbb44",
    "66ccee",
    "aa3377",
    "882255",
    "44aa99",
    "999933",
    "cc6677",
    "332288",
    "117733",
    "ee8866",
    "77aadd",
    "bbcc33",
    "7a5c3e",
)
TONES = len(_COLORS)

_TONES_CSS = "".join(
    f".t{i}{{fill:#{color};background:#{color}}}.s-t{i}{{stroke:#{color}}}" for i, color in enumerate(_COLORS)
)

STYLE = (
    ":root{--ink:#1c2430;--soft:#5b6776;--paper:#fff;--edge:#dde3ea;--band:#f5f7fa}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6ebf1;--soft:#9aa7b6;--paper:#14191f;--edge:#2c3640;"
    "--band:#1b222a}}"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1180px;"
    "margin:2rem auto;padding:0 1.2rem}h1{font-size:1.7rem;margin:0 0 .3rem}h2{font-size:1.12rem;margin:2.2rem 0 .6rem}"
    ".lead{font-size:1.06rem;max-width:60rem;margin:0}.note{color:var(--soft);font-size:.86rem;margin:.4rem 0}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%;font-size:.86rem}"
    "th,td{padding:.35rem .45rem;text-align:right;white-space:nowrap;vertical-align:top;"
    "border-bottom:1px solid var(--edge)}"
    "th{font-weight:600;color:var(--soft);white-space:normal;vertical-align:bottom}th.name{text-align:left;white-space:nowrap;vertical-align:top;color:var(--ink)}"
    "tr:nth-child(even){background:var(--band)}"
    "td small{display:block;color:var(--soft);font-size:.76rem;line-height:1.25}"
    ".grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(330px,1fr));gap:.8rem 1.2rem}"
    ".two{display:grid;grid-template-columns:repeat(auto-fit,minmax(480px,1fr));gap:0 1.6rem}"
    "figure{margin:0}figure.wide{margin:.7rem 0}figcaption{font-weight:600;font-size:.9rem;margin-bottom:.15rem}"
    "svg{max-width:100%;height:auto;display:block}svg text{font:11.5px system-ui,sans-serif;fill:var(--ink)}"
    "svg text.tick,svg text.axis,svg text.value{fill:var(--soft)}path.grid{stroke:var(--edge);fill:none}"
    ".whisker{stroke:var(--ink);stroke-width:1.2;fill:none}.front{stroke:var(--soft);stroke-dasharray:4 4;fill:none}"
    ".mark{fill:var(--paper);stroke:var(--ink);stroke-width:1.6}.line{fill:none;stroke-width:1.8}.track{fill:var(--band);stroke:var(--edge)}"
    ".use{fill:#2b6cb0}.base{fill:#9aa3ad;background:#9aa3ad}.s-base{stroke:#9aa3ad}"
    ".legend span{margin-right:1rem;white-space:nowrap;font-size:.86rem}"
    ".legend i{display:inline-block;width:.8em;height:.8em;"
    "border-radius:2px;margin-right:.35em}code{font-size:.92em}ul{padding-left:1.2rem;font-size:.92rem}" + _TONES_CSS
)
