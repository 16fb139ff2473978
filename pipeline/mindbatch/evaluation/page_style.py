"""The style sheet of the page."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fbfaf8; --card: #ffffff; --ink: #1d1f22; --quiet: #5d636b; --line: #dcd9d3;
  --bar: #2f6690; --shade: #fdeec2; --alert: #a3261c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --card: #1c2024; --ink: #e8e6e1; --quiet: #a0a6ad; --line: #353b41;
    --bar: #7db4e0; --shade: #4a3d12; --alert: #ff9a8d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 76rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
}
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2; }
h2 { margin: 3rem 0 0.5rem; font-size: 1.3rem; }
h3 { margin: 0 0 0.25rem; font-size: 1rem; }
p { margin: 0.4rem 0; max-width: 46rem; }
.quiet, figcaption { color: var(--quiet); font-size: 0.875rem; }
.facts { overflow-wrap: anywhere; }
.headlines {
  display: grid;
  grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr));
  gap: 1rem;
  margin: 1.75rem 0 1rem;
  padding: 0;
}
.headlines div { border-top: 3px solid var(--bar); padding-top: 0.5rem; }
.headlines dt { color: var(--quiet); font-size: 0.875rem; }
.headlines dd { margin: 0; font-size: 1.2rem; font-weight: 600; overflow-wrap: anywhere; }
.headlines dd + dd { font-size: 0.875rem; font-weight: 400; }
.charts {
  display: grid;
  grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr));
  gap: 1.25rem;
  margin-top: 1rem;
}
figure {
  margin: 0;
  padding: 1rem;
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: 6px;
}
figcaption { margin-top: 0.4rem; }
.charts figcaption { margin: 0 0 0.6rem; min-height: 2.8em; line-height: 1.4; }
svg { display: block; width: 100%; height: auto; }
svg.ranking { max-width: 26rem; }
.plot { max-width: 38rem; }
svg .leader { stroke: var(--quiet); stroke-width: 1; }
svg text { fill: var(--quiet); font-size: 12px; }
svg .name, svg .value { fill: var(--ink); }
svg .value { font-variant-numeric: tabular-nums; }
svg .point { fill: var(--bar); stroke: var(--bar); stroke-width: 1.5; }
svg .behind { fill: var(--card); }
svg .interval { stroke: var(--bar); stroke-width: 3; stroke-linecap: round; opacity: 0.45; }
svg .grid { stroke: var(--line); stroke-width: 1; }
.scroll {
  overflow-x: auto;
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: 6px;
}
table {
  border-collapse: collapse;
  width: 100%;
  font-size: 0.875rem;
  font-variant-numeric: tabular-nums;
}
th, td {
  padding: 0.45rem 0.7rem;
  text-align: right;
  white-space: nowrap;
  border-bottom: 1px solid var(--line);
}
th:first-child { text-align: left; }
tbody tr:last-child > * { border-bottom: 0; }
.settings {
  display: grid;
  grid-template-columns: max-content 1fr;
  gap: 0.35rem 1rem;
  margin: 0;
  font-size: 0.875rem;
}
.settings dt { font-weight: 600; }
.settings dd { margin: 0; overflow-wrap: anywhere; }
td.best { font-weight: 700; }
thead th { color: var(--quiet); font-weight: 500; }
details { margin-top: 1.25rem; border-top: 1px solid var(--line); padding-top: 0.75rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
summary .number { color: var(--quiet); margin-right: 0.5rem; }
.cards {
  display: grid;
  grid-template-columns: repeat(auto-fill, minmax(min(21rem, 100%), 1fr));
  gap: 1rem;
  margin-top: 1rem;
}
.card {
  padding: 0.9rem 1rem;
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: 6px;
  min-width: 0;
}
.output {
  margin: 0.5rem 0 0;
  white-space: pre-wrap;
  overflow-wrap: anywhere;
  unicode-bidi: isolate;
}
.prompt { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; font-weight: 600; }
@media (max-width: 40rem) { .plot { padding: 0.5rem; } }
mark { background: var(--shade); color: inherit; border-radius: 2px; }
.error { color: var(--alert); overflow-wrap: anywhere; }
"""
