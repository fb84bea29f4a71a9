"""Charts: matplotlib figures as structured data.

A chart has a type, a title and elements; what these are depends on the type, and follows what clients of code interpreters
know: lines and scatters have points, bars a label, a group and a value, pies angles, boxes quartiles. A figure with several
axes is a superchart, whose elements are charts. Only objects that matplotlib has made are looked at here; the module is
loaded already when there is a figure.
"""
import builtins, datetime, re

__builtins__ = dict(vars(builtins))

UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")
MAX_POINTS = 100_000  # of one chart


def chart(figure):
    """Returns a figure as a chart, or None for an empty one."""
    axes = figure.get_axes()
    if not any(ax.has_data() for ax in axes):
        return None
    if len(axes) == 1:
        return chart_of(axes[0])
    title = figure._suptitle.get_text() if figure._suptitle else ""
    return {"type": "superchart", "title": title or None, "elements": [chart_of(ax) for ax in axes]}


def chart_of(ax):
    kind, make = kind_of(ax)
    body = {"type": kind, "title": ax.get_title() or None, "elements": []}
    if make:
        make(ax, body)
    return body


def kind_of(ax):
    """Returns the type of the chart that some axes show, and the function that fills it in."""
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch, Rectangle, Wedge

    things = [*ax.lines, *ax.patches, *ax.collections, *ax.images, *ax.artists, *ax.tables]
    if not things:
        return "unknown", None
    if all_are(things, Line2D):
        return "line", lines
    if all_are(things, (Line2D, PathPatch)):
        return "box_and_whisker", boxes
    shapes = [thing for thing in things if not (isinstance(thing, Line2D) and is_rule(thing))]
    for kind, name, make in (PathCollection, "scatter", scatter), (Wedge, "pie", pie), (Rectangle, "bar", bars):
        if shapes and all_are(shapes, kind):
            return name, make
    return "unknown", None


def all_are(things, kind):
    return all(isinstance(thing, kind) for thing in things)


def is_rule(line):
    """Reports whether a line is a mark across the axes and no data."""
    x, y = line.get_xdata(), line.get_ydata()
    return len(x) == len(y) == 2 and (x[0] == x[1] or y[0] == y[1])


# Axes.


def plane(ax, body, swapped=False):
    """Adds labels and units of both axes; a chart that lies on its side is told as if it stood."""
    labels = [ax.get_xlabel() or None, ax.get_ylabel() or None]
    if swapped:
        labels.reverse()
    for axis, label in zip("xy", labels):
        found = UNIT.search(label or "")
        body[axis + "_label"] = label
        body[axis + "_unit"] = found and (found.group(1) or found.group(2))


def scaled(ax, body):
    """Adds what charts of points have: ticks and scales, too."""
    plane(ax, body)
    for name, axis in ("x", ax.xaxis), ("y", ax.yaxis):
        dated = is_dated(axis)
        labels = [label.get_text() for label in axis.get_ticklabels()]
        ticks = [tick_date(tick) if dated else number(tick) for tick in axis.get_ticklocs()]
        body[name + "_ticks"] = ticks
        body[name + "_tick_labels"] = labels
        body[name + "_scale"] = "datetime" if dated else scale_of(axis, ticks, labels)


def is_dated(axis):
    find = getattr(axis, "get_converter", None)
    converter = find() if find else axis.converter
    return "Date" in type(converter).__name__


def tick_date(tick):
    from matplotlib.dates import num2date

    return num2date(tick).isoformat()


def scale_of(axis, ticks, labels):
    """Categories stand at 0, 1, 2, … and have other names."""
    if axis.get_scale() != "linear":
        return axis.get_scale()
    named = all(tick == n and label != str(n) for n, (tick, label) in enumerate(zip(ticks, labels)))
    return "categorical" if ticks and named else "linear"


def number(value):
    """Returns a coordinate in a form that JSON has."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[s]"))
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return value if abs(value) < float("inf") else None
    return number(value.isoformat() if hasattr(value, "isoformat") else str(value))


def points(x, y):
    return [[number(a), number(b)] for a, b in zip(x, y)][:MAX_POINTS]


# Charts.


def lines(ax, body):
    scaled(ax, body)
    for line in ax.lines:
        if is_rule(line):
            continue
        label = line.get_label()
        if label.startswith("_child"):
            label = "Line " + label[6:]
        body["elements"].append({"label": label, "points": points(line.get_xdata(), line.get_ydata())})


def scatter(ax, body):
    scaled(ax, body)
    for group in ax.collections:
        spots = group.get_offsets()
        body["elements"].append({"label": group.get_label(), "points": points(spots[:, 0], spots[:, 1])})


def pie(ax, body):
    for wedge in ax.patches:
        angle = abs(round(float(wedge.theta2) - float(wedge.theta1), 4))
        body["elements"].append({"label": wedge.get_label(), "angle": angle, "radius": number(wedge.r)})


def bars(ax, body):
    lying = bool(ax.containers) and all(lies(container) for container in ax.containers)
    plane(ax, body, swapped=lying)
    labels = [label.get_text() for label in (ax.get_yticklabels() if lying else ax.get_xticklabels())]
    for container in ax.containers:
        group = container.get_label()
        if group.startswith("_container"):
            group = "Group " + group[10:]
        for n, bar in enumerate(container):
            label = labels[n] if n < len(labels) else str(n)
            value = bar.get_width() if lying else bar.get_height()
            body["elements"].append({"label": label, "group": group, "value": number(value)})


def lies(container):
    orientation = getattr(container, "orientation", None)
    if orientation:
        return orientation == "horizontal"
    return len({bar.get_height() for bar in container}) == 1


class Box:
    """A box, stood upright."""

    def __init__(self, patch, swapped):
        corners = patch.get_path().vertices
        x, y = (corners[:, 1], corners[:, 0]) if swapped else (corners[:, 0], corners[:, 1])
        self.left, self.right, self.low, self.high = (float(v) for v in (min(x), max(x), min(y), max(y)))
        self.median, self.width = None, 0
        self.least, self.most = self.low, self.high
        self.outliers = []

    def holds(self, x):
        return self.left <= x <= self.right

    def take(self, x, y, joined):
        """Takes a line that belongs to the box for what it is."""
        if not joined or len(x) != 2:
            self.outliers += map(round9, y)
        elif y[0] == y[1] and x[0] != x[1]:
            # The ends of whiskers look the same, and may lie on the box, but are narrower.
            if self.low <= y[0] <= self.high and abs(x[1] - x[0]) > self.width:
                self.width, self.median = abs(x[1] - x[0]), y[0]
        elif x[0] == x[1]:
            self.least, self.most = min(self.least, *y), max(self.most, *y)

    def body(self, label):
        return {
            "label": label, "min": round9(self.least), "first_quartile": round9(self.low), "median": round9(self.median),
            "third_quartile": round9(self.high), "max": round9(self.most), "outliers": self.outliers,
        }


def round9(value):
    """Drops what computing in binary has added."""
    return float(f"{float(value):.9g}")


def boxes(ax, body):
    for swapped in False, True:
        found = stand(ax, swapped)
        if all(box.median is not None for box in found):
            break
    else:
        body["type"] = "unknown"
        return
    plane(ax, body, swapped)
    axis = ax.yaxis if swapped else ax.xaxis
    labels = list(zip(axis.get_ticklocs(), (label.get_text() for label in axis.get_ticklabels())))
    for n, box in enumerate(found):
        middle = (box.left + box.right) / 2
        label = min(labels, key=lambda tick: abs(tick[0] - middle))[1] if labels else str(n + 1)
        body["elements"].append(box.body(label))


def stand(ax, swapped):
    """Reads boxes and the lines that belong to them."""
    found = [Box(patch, swapped) for patch in ax.patches]
    for line in ax.lines:
        x, y = [list(map(float, values)) for values in (line.get_xdata(), line.get_ydata())]
        if swapped:
            x, y = y, x
        for box in found:
            if x and all(map(box.holds, x)):
                box.take(x, y, line.get_linestyle() not in ("None", "none", "", " "))
                break
    return found
