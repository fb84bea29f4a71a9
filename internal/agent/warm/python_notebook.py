"""What notebooks have beyond Python: display, lines that begin with % or !, inline figures, and the few parts of IPython that
code asks for by name. A real IPython, if there is one, is not touched.
"""
import ast, builtins, importlib.abc, importlib.machinery, importlib.util, os, re, sys, textwrap, types

__builtins__ = dict(vars(builtins))

BACKEND = "forkd_inline"  # of matplotlib; a module
LINE = re.compile(r"^(\s*)(?:([A-Za-z_][\w., \t]*?)\s*=\s*)?([!%])(.*)$", re.S)
QUIET = frozenset(("config", "load_ext", "reload_ext", "autoreload", "precision", "autosave", "colors", "xmode"))


class Notebook:
    """The notebook's side of a runner. Display makes frames, out() is the outlet of the run at hand, if there is one."""

    def __init__(self, server, shown, out):
        self.server = server
        self.shown = shown
        self.out = out
        self.shell = Shell(self)
        builtins.display = self.display
        builtins.get_ipython = lambda: self.shell
        sys.meta_path.insert(0, Hooks(self))
        sys.meta_path.append(Shims(self))

    # Showing.

    def display(self, *objects, include=None, exclude=None, raw=False, **options):
        """Shows objects in every form that they have; with raw, the objects are dictionaries of forms."""
        outlet = self.out()
        for thing in objects:
            if outlet:
                frame = self.shown.encode(thing) if raw else self.shown.frame(thing)
                if frame is not None:
                    outlet.display(frame)
            else:
                print(thing)

    def open_figures(self):
        """Returns the managers of the inline back end's open figures."""
        helpers = sys.modules.get("matplotlib._pylab_helpers")
        if not helpers or not helpers.Gcf.figs:
            return []
        return [m for m in helpers.Gcf.get_all_fig_managers() if type(m.canvas).__module__ == BACKEND]

    def show_figures(self, *_, **__):
        """Shows every open figure, unless it has been shown, and closes it."""
        if not self.out():
            return
        for manager in self.open_figures():
            figure = manager.canvas.figure
            sys.modules["matplotlib._pylab_helpers"].Gcf.destroy(manager)
            if figure.get_axes() and not any(figure is shown for shown in self.shown.figures):
                self.display(figure)
        self.shown.figures.clear()

    # Lines that are no Python.

    def translate(self, code, name):
        """Returns Python, perhaps with an await outside of functions, for a cell that is none; or None if it cannot be. Only what the compiler stumbles
        over is looked at, so what looks like such a line within a string is left alone."""
        if code.lstrip().startswith("%%"):
            head, _, body = code.lstrip().partition("\n")
            kind, _, line = head[2:].partition(" ")
            return f"get_ipython().run_cell_magic({kind!r}, {line.strip()!r}, {body!r})"
        translated = textwrap.dedent(code.expandtabs(8)) if code[:1] in " \t\n" else code
        for _ in range(code.count("\n") + 2):
            try:
                compile(translated, name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            except SyntaxError as e:
                at = (e.lineno or 0) - 1
            except ValueError:
                return None
            else:
                return translated
            lines = translated.split("\n")
            for at in at, at - 1:  # a block that has only such a line is found missing a line later
                if 0 <= at < len(lines) and (line := python_of(lines[at])):
                    lines[at] = line
                    translated = "\n".join(lines)
                    break
            else:
                return None
        return None


def python_of(line):
    """Returns the Python for one line that begins with % or !, or has one behind an assignment; else None."""
    found = LINE.match(line)
    if not found:
        return None
    indent, target, mark, rest = found.groups()
    if mark == "!" and target:
        call = f"get_ipython().getoutput({rest.strip()!r})"
    elif mark == "!":
        call = f"get_ipython().system({rest.lstrip('!').strip()!r})"
    else:
        name, _, argument = rest.strip().partition(" ")
        call = f"get_ipython().run_line_magic({name!r}, {argument.strip()!r})"
    return f"{indent}{target} = {call}" if target else indent + call


class UsageError(Exception):
    """A line that begins with % and means nothing here."""


class Shell:
    """What get_ipython() returns."""

    config = {}

    def __init__(self, notebook):
        self.notebook = notebook
        self.user_ns = notebook.server.namespace

    def system(self, command):
        """Runs a shell command with the run's output; returns nothing, as a line in a notebook."""
        import subprocess

        status = subprocess.call(self.expand(command), shell=True, executable=shell_program())
        self.user_ns["_exit_code"] = status if status >= 0 else 128 - status

    def getoutput(self, command):
        import subprocess

        done = subprocess.run(self.expand(command), shell=True, executable=shell_program(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.user_ns["_exit_code"] = done.returncode
        return done.stdout.decode("utf-8", "replace").splitlines()

    def expand(self, command):
        """Puts in Python values for {expressions} and $names that exist; what is left is the shell's."""

        def value(found):
            try:
                return str(eval(found.group(1), self.user_ns))
            except Exception:
                return found.group(0)

        command = re.sub(r"\{([^{}]+)\}", value, command)
        return re.sub(r"\$([A-Za-z_]\w*)", lambda found: str(self.user_ns.get(found.group(1), found.group(0))), command)

    def run_line_magic(self, name, line, **_):
        function = getattr(self, "magic_" + name, None)
        if function:
            return function(line)
        if name not in QUIET:
            raise UsageError(f"line magic %{name} is not known here")

    magic = run_line_magic

    def run_cell_magic(self, name, line, cell):
        function = getattr(self, "cell_" + name, None)
        if not function:
            raise UsageError(f"cell magic %%{name} is not known here")
        return function(line, cell)

    def run(self, code):
        made = self.notebook.server.run(code, "<magic>")
        return made[0] if made else None

    def magic_matplotlib(self, line):
        if "matplotlib" in sys.modules:
            sys.modules["matplotlib"].use("module://" + BACKEND)

    def magic_pip(self, line):
        self.system(f"{quoted(sys.executable)} -m pip {line}")

    def magic_conda(self, line):
        self.system("conda " + line)

    def magic_cd(self, line):
        os.chdir(os.path.expanduser(line.strip("'\"") or "~"))
        print(os.getcwd())

    def magic_pwd(self, line):
        return os.getcwd()

    def magic_ls(self, line):
        self.system("ls " + line)

    def magic_env(self, line):
        name, given, value = line.replace(" ", "=", 1).partition("=") if "=" not in line else line.partition("=")
        if not name:
            return dict(os.environ)
        if not given:
            return os.environ.get(name)
        os.environ[name.strip()] = value.strip()
        print(f"env: {name.strip()}={value.strip()}")

    magic_set_env = magic_env

    def magic_who(self, line):
        print("\t".join(sorted(name for name in self.user_ns if not name.startswith("_"))) or "Interactive namespace is empty.")

    def magic_time(self, line):
        return self.cell_time("", line)

    def magic_timeit(self, line):
        import timeit

        timer = timeit.Timer(line, globals=self.user_ns)
        loops, taken = timer.autorange()
        print(f"{taken / loops * 1e6:.3g} µs per loop ({loops:,} loops)")

    def magic_run(self, line):
        import runpy, shlex

        path, *arguments = shlex.split(line)
        former, sys.argv = sys.argv, [path, *arguments]
        try:
            self.user_ns.update((k, v) for k, v in runpy.run_path(path, run_name="__main__").items() if not k.startswith("__"))
        finally:
            sys.argv = former

    def cell_time(self, line, cell):
        import time

        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return self.run(cell)
        finally:
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            print(f"CPU times: {cpu * 1e3:.3g} ms\nWall time: {wall * 1e3:.3g} ms")

    def cell_timeit(self, line, cell):
        self.magic_timeit(cell)

    def cell_capture(self, line, cell):
        import contextlib, io

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self.run(cell)

    def cell_writefile(self, line, cell):
        add = line.startswith("-a ")
        path = os.path.expanduser(line.removeprefix("-a ").strip())
        with open(path, "a" if add else "w", encoding="utf-8") as file:
            file.write(cell)
        print(("Appending to " if add else "Writing ") + path)

    def cell_bash(self, line, cell):
        import subprocess

        status = subprocess.run([shell_program(), *line.split()], input=cell.encode()).returncode
        if status:
            raise subprocess.CalledProcessError(status, "bash")

    cell_sh = cell_bash

    def shown(self, kind):
        return lambda line, cell: self.notebook.display({kind: cell}, raw=True)

    @property
    def cell_html(self):
        return self.shown("text/html")

    cell_HTML = cell_html

    @property
    def cell_markdown(self):
        return self.shown("text/markdown")

    @property
    def cell_latex(self):
        return self.shown("text/latex")

    @property
    def cell_javascript(self):
        return self.shown("application/javascript")

    cell_js = cell_javascript

    @property
    def cell_svg(self):
        return self.shown("image/svg+xml")


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def shell_program():
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


# Modules that are imported later.


class Hooks(importlib.abc.MetaPathFinder):
    """Has something done to a few modules when they are imported."""

    def __init__(self, notebook):
        self.after = {"matplotlib": inline, "PIL.Image": lambda module: shown_images(notebook, module)}
        self.looking = False

    def find_spec(self, name, path, target=None):
        after = self.after.get(name)
        if not after or self.looking:
            return None
        self.looking = True  # so that the others find the module for us
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec and spec.loader and hasattr(spec.loader, "exec_module"):
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                try:
                    after(module)
                except Exception:
                    pass  # a version that looks otherwise goes without

            spec.loader.exec_module = exec_module
        return spec


def inline(matplotlib):
    """Makes the inline back end the default, unless the user has named one."""
    if not os.environ.get("MPLBACKEND"):
        matplotlib.use("module://" + BACKEND)


def shown_images(notebook, module):
    """Has images shown by show(), for which there is no screen, and by save(), as clients expect."""
    image = module.Image
    save = image.save

    def saved(self, *arguments, **options):
        save(self, *arguments, **options)
        if not inside_matplotlib():
            notebook.display(self)

    image.show = lambda self, *_, **__: notebook.display(self)
    image.save = saved


def inside_matplotlib():
    """Figures and the forms of images are made by save(), too; those are shown by whoever makes them."""
    frame = sys._getframe(2)
    while frame:
        if frame.f_globals.get("__name__", "").startswith(("matplotlib.", "PIL.", "forkd.")):
            return True
        frame = frame.f_back
        if frame and frame.f_globals.get("__name__") == "__main__":
            return False
    return False


class Shims(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that are made here, after everybody else has not found them."""

    def __init__(self, notebook):
        self.makers = {
            "IPython": lambda module: make_ipython(module, notebook),
            "IPython.display": lambda module: make_display(module, notebook),
            "IPython.core": lambda module: None,
            "IPython.core.display": lambda module: make_display(module, notebook),
            BACKEND: lambda module: make_backend(module, notebook),
        }

    def find_spec(self, name, path, target=None):
        if name not in self.makers:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=name in ("IPython", "IPython.core"))

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        self.makers[module.__name__](module)


def make_ipython(module, notebook):
    module.__version__ = "0"
    module.version_info = (0, 0, 0)
    module.get_ipython = lambda: notebook.shell


def make_backend(module, notebook):
    """A back end whose figures are shown by whoever runs the code: at plt.show(), and at the end of a run."""
    from matplotlib.backend_bases import FigureManagerBase
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    class FigureCanvas(FigureCanvasAgg):
        manager_class = property(lambda self: FigureManager)

    class FigureManager(FigureManagerBase):
        def show(self):
            notebook.show_figures()

    FigureCanvas.__module__ = BACKEND
    FigureCanvas.manager_class = FigureManager
    module.FigureCanvas, module.FigureManager = FigureCanvas, FigureManager
    module.show = notebook.show_figures

    def new_figure_manager(num, *arguments, FigureClass=None, **options):
        from matplotlib.figure import Figure

        return new_figure_manager_given_figure(num, (FigureClass or Figure)(*arguments, **options))

    def new_figure_manager_given_figure(num, figure):
        return FigureManager(FigureCanvas(figure), num)

    module.new_figure_manager = new_figure_manager
    module.new_figure_manager_given_figure = new_figure_manager_given_figure


def make_display(module, notebook):
    """The part of IPython.display that shows things."""

    class DisplayObject:
        kind = "text/plain"
        binary = False

        def __init__(self, data=None, url=None, filename=None, metadata=None, **options):
            if filename is None and url is None and isinstance(data, (str, os.PathLike)) and self.binary:
                data, filename = None, data
            if filename is not None:
                with open(filename, "rb") as file:
                    data = file.read()
            if data is None and url is not None:
                import urllib.request

                with urllib.request.urlopen(url) as answer:
                    data = answer.read()
            if isinstance(data, bytes) and not self.binary:
                data = data.decode("utf-8")
            self.data, self.filename, self.options = data, filename, options

        def _repr_mimebundle_(self, include=None, exclude=None):
            return {self.kind: self.data, "text/plain": repr(self)}

        def __repr__(self):
            return f"<IPython.core.display.{type(self).__name__} object>"

    def shows(name, kind, **members):
        made = type(name, (DisplayObject,), {"kind": kind, "__module__": "IPython.core.display", **members})
        setattr(module, name, made)
        return made

    shows("HTML", "text/html")
    shows("Markdown", "text/markdown")
    shows("SVG", "image/svg+xml")
    shows("Latex", "text/latex")
    shows("Math", "text/latex", _repr_mimebundle_=lambda self, **_: {"text/latex": f"$\\displaystyle {self.data}$", "text/plain": repr(self)})
    shows("Javascript", "application/javascript")
    shows("JSON", "application/json")
    shows("Pretty", "text/plain", _repr_mimebundle_=lambda self, **_: {"text/plain": str(self.data)})
    shows("Image", "image/png", binary=True, _repr_mimebundle_=image_forms)
    frame = shows("IFrame", "text/html", _repr_mimebundle_=frame_forms)
    frame.__init__ = lambda self, src, width, height, **options: setattr(self, "data", (src, width, height))
    module.DisplayObject = DisplayObject
    module.display = notebook.display
    module.clear_output = lambda wait=False: None
    module.update_display = lambda *objects, **options: notebook.display(*objects)
    for name, kind in (
        ("html", "text/html"), ("markdown", "text/markdown"), ("svg", "image/svg+xml"), ("png", "image/png"),
        ("jpeg", "image/jpeg"), ("latex", "text/latex"), ("json", "application/json"), ("javascript", "application/javascript"),
        ("pdf", "application/pdf"),
    ):
        setattr(module, "display_" + name, shower(notebook, kind))


def shower(notebook, kind):
    def show(*objects, raw=False, **_):
        for thing in objects:
            if raw:
                notebook.display({kind: thing}, raw=True)
            else:
                data, _ = notebook.shown.forms(thing)
                notebook.display({k: v for k, v in data.items() if k in (kind, "text/plain")}, raw=True)

    return show


def image_forms(self, include=None, exclude=None):
    """An image's kind is told by its first bytes."""
    data = bytes(self.data or b"")
    for kind, start in ("image/jpeg", b"\xff\xd8"), ("image/gif", b"GIF8"), ("image/webp", b"RIFF"), ("image/svg+xml", b"<"):
        if data.startswith(start):
            break
    else:
        kind = "image/png"
    return {kind: data, "text/plain": repr(self)}


def frame_forms(self, include=None, exclude=None):
    source, width, height = self.data
    return {"text/html": f'<iframe width="{width}" height="{height}" src="{source}" frameborder="0" allowfullscreen></iframe>', "text/plain": repr(self)}
