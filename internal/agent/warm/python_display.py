"""What values look like: the forms, by MIME type, that a value can be shown in.

An object tells its forms by the methods that IPython asks for, so that libraries which know notebooks work here as well.
"""
import base64, builtins, json, sys

__builtins__ = dict(vars(builtins))

TABLE = "application/vnd.forkd.table+json"  # the columns of a data frame
MAX_TEXT = 1 << 20  # characters of plain text
MAX_FORM = 8 << 20  # bytes of any other form
MAX_FRAME = 15 << 20
MAX_CELLS = 200_000  # of a table that travels as data

METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("application/pdf", "_repr_pdf_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
    ("application/javascript", "_repr_javascript_"),
)

# Their text says everything about them.
PLAIN = frozenset((int, float, complex, bool, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, type(None)))


class Display:
    """Makes the Display frames of values."""

    def __init__(self):
        self.chart = None  # makes a chart of a figure
        self.figures = []  # that have been shown in this run

    def frame(self, value, main=False):
        """Returns the payload that shows a value, or None for one that has shown itself."""
        if type(value) in PLAIN:
            return self.encode({"text/plain": plain(value)}, main)
        show = method(value, "_ipython_display_")
        if show:
            show()
            return None
        data, chart = self.forms(value)
        return self.encode(data, main, chart)

    def forms(self, value):
        """Returns the forms of a value, and its chart if it is a figure."""
        data = {}
        bundle = method(value, "_repr_mimebundle_")
        if bundle:
            made = attempt(bundle, include=None, exclude=None)
            made = made[0] if isinstance(made, tuple) and made else made
            if isinstance(made, dict):
                data.update(made)
        for kind, name in METHODS:
            function = kind not in data and method(value, name)
            if function:
                made = attempt(function)
                made = made[0] if isinstance(made, tuple) and made else made
                if made is not None:
                    data[kind] = made
        chart = None
        if is_a(value, "matplotlib.figure", "Figure"):
            data.setdefault("image/png", picture(value))
            self.figures.append(value)
            chart = attempt(self.chart, value)
        elif is_a(value, "pandas", "DataFrame"):
            columns = attempt(table, value)
            if columns is not None:
                data[TABLE] = columns
        data.setdefault("text/plain", plain(value))
        return data, chart

    def encode(self, data, main=False, chart=None):
        """Returns the payload for forms that are given."""
        parts = {}
        for kind, form in data.items():
            try:
                text = as_json(kind, form)
            except (TypeError, ValueError, RecursionError):
                continue
            if len(text) <= (MAX_FORM if kind != "text/plain" else 8 * MAX_TEXT):
                parts[kind] = text
        while sum(map(len, parts.values())) > MAX_FRAME:
            parts.pop(max(parts, key=lambda kind: len(parts[kind])))
        body = b",".join(json.dumps(kind).encode() + b":" + text for kind, text in parts.items())
        body = b'{"data":{' + body + b"}"
        if main:
            body += b',"main":true'
        if chart is not None:
            try:
                text = json.dumps(chart, allow_nan=False).encode()
            except (TypeError, ValueError, RecursionError):
                text = b""
            if text and len(body) + len(text) <= MAX_FRAME:
                body += b',"chart":' + text
        return body + b"}"


def method(value, name):
    """Returns a method that tells a form, if the object really has it: some have an answer for every name."""
    try:
        if isinstance(value, type) or hasattr(value, "_ipython_canary_method_should_not_exist_"):
            return None
        function = getattr(value, name, None)
    except Exception:
        return None
    return function if callable(function) else None


def attempt(function, *arguments, **options):
    """Calls something that may fail, which leaves one form out."""
    try:
        return function(*arguments, **options)
    except Exception:
        return None


def plain(value):
    text = repr(value)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


def is_a(value, module, name):
    """Reports whether a value is of a class, without importing the module that has it."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def as_json(kind, form):
    """Returns a form as JSON: text and binary as a string, JSON as it is."""
    if isinstance(form, (bytes, bytearray, memoryview)):
        if kind.startswith("text/") or kind in ("image/svg+xml", "application/javascript"):
            form = bytes(form).decode("utf-8", "replace")
        else:
            form = base64.b64encode(form).decode("ascii")
    elif not isinstance(form, str) and not (kind == "application/json" or kind.endswith("+json")):
        form = str(form)
    return json.dumps(form, ensure_ascii=False, allow_nan=False, default=str).encode("utf-8", "backslashreplace")


def picture(figure):
    """Draws a figure as PNG, on a canvas of its own, whatever back end it was made for."""
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg

    former = figure.canvas
    canvas = FigureCanvasAgg(figure)
    try:
        data = io.BytesIO()
        canvas.print_figure(data, format="png", bbox_inches="tight", facecolor=figure.get_facecolor())
        return data.getvalue()
    finally:
        figure.set_canvas(former)


def table(frame):
    """Returns a data frame by columns."""
    if frame.size > MAX_CELLS:
        return None
    return {str(name): [cell(value) for value in column] for name, column in frame.to_dict(orient="list").items()}


def cell(value):
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if hasattr(value, "isoformat"):
        return None if value != value else value.isoformat()
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None  # NaN is not less either
    return value if isinstance(value, (str, bool, int)) else str(value)
