"""report.html: one self-contained page with a picture of each trial."""

import html
import json

import shrink
from report import command, state, summary

WIDTH, HEIGHT = 760, 54
STYLE = """body{font:14px/1.4 system-ui,sans-serif;margin:2em auto;max-width:1150px;color:#222;background:#fff}h1{font-size:1.4em}table{border-collapse:collapse}
td,th{padding:3px 9px;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}td.n{text-align:right}.bad{color:#b00020;font-weight:600}.skip{color:#777}
.trial{margin:1.1em 0}.why{color:#b00020;white-space:pre-wrap}svg{display:block;background:#f6f6f6}small{color:#666}"""
COLOURS = ("#3b7dd8", "#2a9d6f", "#8a63d2", "#c98a1b")



def picture(r):
    """Faults in red above, generations below: where steps were made, and with how many ranks; under them, where steps came as usual."""
    begin, end = r["began"], r["ended"]
    scale = WIDTH / max(end - begin, 0.001)

    def x(at):
        return (at - begin) * scale

    parts = [f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for name, at, healed in r.get("faults", []):
        w = max(2.0, x(healed or end) - x(at))
        parts.append(f'<rect x="{x(at):.1f}" y="4" width="{w:.1f}" height="12" fill="#d1495b"><title>{html.escape(name)}: {at - begin:.2f} s to {(healed or end) - begin:.2f} s</title></rect>')
    for g in r.get("generations", []):
        w = max(1.0, x(g["to"]) - x(g["from"]))
        about = f"generation {g['generation']}: {g['size']} ranks, steps {g['first_step']} to {g['last_step']}, {g['from'] - begin:.2f} s to {g['to'] - begin:.2f} s"
        parts.append(f'<rect x="{x(g["from"]):.1f}" y="20" width="{w:.1f}" height="14" fill="{COLOURS[g["generation"] % len(COLOURS)]}"><title>{about}</title></rect>')
        if w > 40:
            parts.append(f'<text x="{x(g["from"]) + 3:.1f}" y="31" font-size="10" fill="#fff">g{g["generation"]}: {g["size"]}</text>')
    for a, b in r.get("useful_spans", []):
        parts.append(f'<rect x="{x(a):.1f}" y="37" width="{max(0.5, x(b) - x(a)):.1f}" height="4" fill="#555"/>')
    every = next(s for s in (1, 2, 5, 10, 30, 60, 300, 1e9) if (end - begin) / s <= 12)
    for k in range(int((end - begin) / every) + 1):
        parts.append(f'<text x="{k * every * scale:.1f}" y="51" font-size="9" fill="#777">{k * every:g} s</text>')
    return "".join([*parts, "</svg>"])


def figures(r):
    names = (("formed", "formed_ms"), ("detected", "detect_ms"), ("recovered", "recovery_ms"), ("after heal", "healed_ms"), ("longest pause", "pause_ms"))
    said = [f"{name} {r[key]:.0f} ms" for name, key in names if r.get(key) is not None]
    said += [f"{r['work_lost_steps']} steps computed again"] if r.get("work_lost_steps") else []
    said += [f"useful {100 * r['useful']:.1f} %"] if r.get("useful") is not None else []
    return ", ".join(said)


def page(results):
    """Everything in one file: no script, nothing loaded."""
    trials, failed = results.trials, len(results.failed)
    stamp = ", ".join(f"{k} {' to '.join(map(str, v))}" for k, v in results.stamp().items() if v)
    rows = ["<!doctype html><html lang='en'><meta charset='utf-8'><title>elastic-chaos</title><style>" + STYLE + "</style>", "<h1>elastic-chaos</h1>",
            *("<p>" + html.escape(command(run)) + "</p>" for run in results.runs), f"<p>{html.escape(stamp)}</p>",
            f"<p>{len(trials)} trials, <span class='{'bad' if failed else ''}'>{failed} failed</span>, "
            f"{len(trials) - len(results.done)} skipped. Red: faults, from injection to healing; below: generations, from first to last step, with the number of ranks; thin: steps that follow each other as usual, the useful time.</p>",
            "<table>" + head("entry", "trials", "failed", *COLUMNS) + "".join(html_row(row) for row in summary(trials)) + "</table>"]
    rows += [f"<p>{html.escape(shrink.told(found))}</p>" for found in results.shrunk]
    for r in sorted(trials, key=lambda r: r["ok"]):  # those that failed first
        if state(r) == "skipped":
            rows.append(f"<div class='trial skip'>{html.escape(r['entry'])}: skipped, {html.escape(r['skipped'])}</div>")
            continue
        params = " " + json.dumps(r["params"]) if r["params"] else ""
        evidence = "; ".join(r.get("evidence", []) or [])
        rows.append(f"<div class='trial'><b class='{'' if r['ok'] else 'bad'}'>{html.escape(r['entry'])}</b> <small>seed {r['seed']}{html.escape(params)}</small><br>"
                    f"<small title='{html.escape(evidence)}'>{html.escape(figures(r))}</small>{picture(r)}" + ("" if r["ok"] else f"<div class='why'>{html.escape(str(r['why']))}</div>") + "</div>")
    return "\n".join(rows) + "\n</html>\n"


COLUMNS = ("detected, p50 / p99 / max ms", "recovered, p50 / p99 / max ms", "after healing, p50 / p99 / max ms", "longest pause, ms", "steps again, most")


def head(*names):
    return "<tr>" + "".join(f"<th>{n}</th>" for n in names) + "</tr>"


def html_row(row):
    return "<tr>" + "".join(f"<td class='{'n' if i else ''}'>{html.escape(str(v))}</td>" for i, v in enumerate(row)) + "</tr>"
