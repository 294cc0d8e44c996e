"""The look of a report: one style sheet, light and dark, nothing fetched."""

CSS = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #62676e; --line: #e2e4e8; --paper: #ffffff; --wash: #f5f6f8;
  --good: #17784a; --bad: #b3342c; --warn: #8a5a00; --bar: #2f6fde; --band: #b9d0f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e7ea; --soft: #9aa0a8; --line: #33373d; --paper: #16181b; --wash: #1e2125;
    --good: #5cc492; --bad: #f0857d; --warn: #e0b04d; --bar: #7fabff; --band: #2f4670; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.45rem; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 1.05rem; margin: 2.5rem 0 .6rem; }
p { margin: .4rem 0; }
.soft { color: var(--soft); }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.headline { display: flex; flex-wrap: wrap; align-items: baseline; gap: .3rem 1.2rem; margin: 1.6rem 0 .4rem; }
.headline strong { font-size: 3.1rem; line-height: 1.1; font-weight: 650; letter-spacing: -.03em; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .6rem; margin: 1.4rem 0 0; }
.facts div { background: var(--wash); border-radius: .5rem; padding: .6rem .8rem; }
.facts dt { color: var(--soft); font-size: .8rem; }
.facts dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.gate { border-left: 3px solid currentColor; padding: .1rem 0 .1rem .8rem; margin: 1.2rem 0 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 600; font-size: .8rem; color: var(--soft); border-bottom: 1px solid var(--line); }
th, td { padding: .4rem .8rem .4rem 0; vertical-align: top; }
td:first-child { min-width: 11rem; }
td { border-bottom: 1px solid var(--line); unicode-bidi: isolate; overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td pre, code { font: .86em/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
svg.interval { width: 11rem; height: .9rem; vertical-align: middle; }
svg .track { fill: var(--line); } svg .band { fill: var(--band); } svg .mean { fill: var(--bar); }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
"""
