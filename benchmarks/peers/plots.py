# SPDX-License-Identifier: Apache-2.0
"""Time against size as SVG, both axes by powers: written here, so that drawing needs nothing but Python. Colours and marks both tell lines
apart; the drawing brings its own background, and another one where the reader's system is dark."""
import math
import statistics

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 46, 40  # margins
# Of contenders: a class of the style below, and the shape of its marks.
LINES = {"megadp, windows": ("a", "circle"), "megadp, user memory": ("b", "square"), "Open MPI": ("c", "triangle"),
         "Gloo": ("d", "diamond")}
STYLE = """
svg { font: 12px system-ui, sans-serif } .back { fill: #ffffff } text { fill: #24292f } .title { font-weight: 600; font-size: 13px }
.grid { stroke: #d8dee4; stroke-width: 1 } .range { stroke-width: 1; opacity: .6 }
.line { fill: none; stroke-width: 2; stroke-linejoin: round }
.a { stroke: #0550ae } .b { stroke: #1f83c9 } .c { stroke: #bc4c00 } .d { stroke: #6e7781 }
.a.mark { fill: #0550ae } .b.mark { fill: #1f83c9 } .c.mark { fill: #bc4c00 } .d.mark { fill: #6e7781 } .mark { stroke: none }
.b.line { stroke-dasharray: 7 3 } .d.line { stroke-dasharray: 2 3 }
@media (prefers-color-scheme: dark) {
.back { fill: #0d1117 } text { fill: #e6edf3 } .grid { stroke: #30363d }
.a { stroke: #79c0ff } .b { stroke: #56a4e8 } .c { stroke: #f0883e } .d { stroke: #9aa4af }
.a.mark { fill: #79c0ff } .b.mark { fill: #56a4e8 } .c.mark { fill: #f0883e } .d.mark { fill: #9aa4af } .mark { stroke: none } }
""".strip()


def bytes_in_words(size):
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.3g} {unit}"
    return f"{size} B"


def time_in_words(us):
    return f"{us / 1e6:g} s" if us >= 1e6 else f"{us / 1e3:g} ms" if us >= 1e3 else f"{us:g} µs"


class Axes:
    """From bytes and microseconds to points, by their logarithms."""

    def __init__(self, rows):
        sizes = [size for row in rows for size in row["bytes"]]
        times = [us for row in rows for turns in row["us"] for us in turns]
        self.sizes = math.log2(min(sizes)), math.log2(max(max(sizes), 2 * min(sizes)))
        self.times = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)) + 1e-9)

    def x(self, size):
        low, high = self.sizes
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(size) - low) / (high - low), 1)

    def y(self, us):
        low, high = self.times
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(us) - low) / (high - low), 1)


def mark(shape, kind, x, y, r=3.2):
    if shape == "circle":
        return f'<circle class="{kind} mark" cx="{x}" cy="{y}" r="{r}"/>'
    corners = {"square": ((-1, -1), (1, -1), (1, 1), (-1, 1)), "triangle": ((0, -1.3), (1.2, 1), (-1.2, 1)),
               "diamond": ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0))}[shape]
    points = " ".join(f"{x + dx * r:.1f},{y + dy * r:.1f}" for dx, dy in corners)
    return f'<polygon class="{kind} mark" points="{points}"/>'


def grid(axes):
    drawn = []
    for power in range(axes.times[0], axes.times[1] + 1):
        y = axes.y(10.0 ** power)
        drawn += [f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>',
                  f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{time_in_words(10.0 ** power)}</text>']
    for power in range(math.ceil(axes.sizes[0]), int(axes.sizes[1]) + 1):
        if (power - 3) % 3:  # a label for each of 8 B, 64 B, 512 B, ...
            continue
        x = axes.x(2 ** power)
        drawn += [f'<path class="grid" d="M{x} {TOP}V{HEIGHT - BOTTOM}"/>',
                  f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{bytes_in_words(2 ** power)}</text>']
    return drawn


def curve(axes, row):
    kind, shape = LINES[row["contender"]]
    points = [(axes.x(size), *(axes.y(of(turns)) for of in (statistics.median, min, max))) for size, turns in zip(row["bytes"], row["us"])]
    drawn = [f'<path class="{kind} range" d="M{x} {low}V{high}"/>' for x, _, low, high in points if low != high]
    drawn.append(f'<path class="{kind} line" d="M' + "L".join(f"{x} {y}" for x, y, _, _ in points) + '"/>')
    return drawn + [mark(shape, kind, x, y) for x, y, _, _ in points]


def legend(rows):
    drawn, x = [], LEFT
    for row in rows:
        kind, shape = LINES[row["contender"]]
        drawn += [f'<path class="{kind} line" d="M{x} 31H{x + 22}"/>', mark(shape, kind, x + 11, 31),
                  f'<text x="{x + 28}" y="35">{row["contender"]}</text>']
        x += 46 + 7 * len(row["contender"])
    return drawn


def drawing(title, rows):
    axes = Axes(rows)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
             f"<title>{title}</title>", f"<style>{STYLE}</style>", f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
             f'<text class="title" x="{LEFT}" y="18">{title}</text>', *legend(rows), *grid(axes)]
    for row in rows:
        parts += curve(axes, row)
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">bytes of the whole buffer of a rank</text>')
    return "\n".join(parts) + "\n</svg>\n"


def name_of(op, ranks):
    return f"{op}-{ranks}.svg"


def of_sweeps(sweeps):
    """File name → drawing, one for each collective and number of ranks."""
    found = {}
    for op, ranks in dict.fromkeys((row["op"], row["ranks"]) for row in sweeps):
        rows = [row for row in sweeps if (row["op"], row["ranks"]) == (op, ranks) and row["contender"] in LINES]
        if rows:
            found[name_of(op, ranks)] = drawing(f"{op.replace('_', '-')} of f32, {ranks} ranks: time of a call", rows)
    return found
