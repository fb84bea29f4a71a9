"""Runs: code whose output and results are passed on while it runs.

What user code writes through Python's streams goes out at once, on the connection of the run. What goes past them, from
programs that it starts, comes through pipes that take the place of the capture files as soon as there may be such a program,
and a thread that exists only then. So a run without programs costs what an evaluation does.
"""
import _thread, ast, builtins, collections, fcntl, json, linecache, os, select, sys, time, warnings

__builtins__ = dict(vars(builtins))

STDOUT, STDERR, DISPLAY, RUN_END = 18, 19, 51, 52
MAX_DATA = 64 << 10
BURST = 64  # frames of output that a run sends one by one before it begins to collect
TICK = 0.02  # seconds between looks of the thread that sends what was collected


class Outlet:
    """What a run sends. Any thread may, also from a signal handler or a finalizer in the middle of sending."""

    def __init__(self, server, connection):
        self.server = server
        self.connection = connection
        self.lock = _thread.RLock()
        self.queue = collections.deque()
        self.flight = memoryview(b""), []  # what is being sent, and the sizes of the parts that have been
        self.pushing = False
        self.frames = 0
        self.pending = {STDOUT: [], STDERR: []}  # collected, in the order of the streams' last change
        self.size = 0
        self.pipes = None
        self.pumping = False
        self.pumped = False
        self.ended = False

    # Sending. An exception out of a signal handler may come between any two bytecodes; what is under way is in self.flight,
    # and the next call goes on with it.

    def push(self):
        if self.pushing:
            return  # a finalizer or a handler within the loop below, which will see to it
        error = None
        try:
            self.pushing = True
            while True:
                view, sizes = self.flight
                sent = sum(sizes)
                if sent == len(view):
                    if not self.queue:
                        break
                    self.flight = memoryview(self.queue.popleft()), []
                    continue
                try:
                    # One call in C from the system call to the list, so that no part is ever sent twice.
                    sizes.extend(map(self.connection.send, (view[sent:],)))
                except BaseException as e:
                    if isinstance(e, OSError) and e.errno:
                        self.connection = Nowhere  # the client has left; the code goes on until it is interrupted
                    else:
                        error = e
        finally:
            self.pushing = False
        if error:
            raise error

    def frame(self, kind, data):
        for start in range(0, len(data), MAX_DATA):
            piece = data[start : start + MAX_DATA]
            self.queue.append(self.server.HEADER.pack(len(piece), kind) + bytes(piece))

    def collect(self):
        """Makes frames of what was collected."""
        for kind, pieces in self.pending.items():
            if pieces:
                self.frame(kind, b"".join(pieces))
                pieces.clear()
        self.size = 0

    def write(self, kind, data):
        """Sends output of a Python stream."""
        with self.lock:
            if self.ended:
                return self.server.captures[kind].write(data)  # of a thread that came too late
            self.foreign(kind)
            if self.pumping:
                self.pending[kind].append(bytes(data))
                self.size += len(data)
                if self.size < MAX_DATA:
                    return
                self.collect()
            else:
                self.frames += 1
                self.frame(kind, data)
                if self.frames > BURST:
                    self.pump()
            self.push()

    def display(self, body):
        """Sends a whole frame, after everything that was written before."""
        with self.lock:
            self.drain()
            self.queue.append(self.server.HEADER.pack(len(body), DISPLAY) + body)
            self.push()

    def end(self, body, last):
        """Ends the run with everything that is still to be sent, in one piece."""
        with self.lock:
            self.pushing = False  # whatever an exception has left it at
            self.drain()
            self.ended = True
            self.pumping = False
            self.server.stdout.sink = self.server.stderr.sink = None
            if last:
                self.queue.append(self.server.HEADER.pack(len(last), DISPLAY) + last)
            self.queue.append(self.server.HEADER.pack(len(body), RUN_END) + body)
            whole = b"".join(self.queue)
            self.queue.clear()
            self.queue.append(whole)
            self.push()

    def drain(self):
        """Collects everything that was written so far."""
        for kind, capture in self.server.captures.items():
            capture.flush()
            self.foreign(kind)
        self.collect()

    # What was not written through Python's streams.

    def foreign(self, kind):
        """Takes what has come past the stream so far, so that the order is kept."""
        capture = self.server.captures[kind]
        size = os.lseek(capture.file, 0, os.SEEK_END)
        if size:
            self.collect()
            at = 0
            while at < size:
                data = os.pread(capture.file, MAX_DATA, at)
                if not data:
                    break
                self.frame(kind, data)
                at += len(data)
            os.ftruncate(capture.file, 0)
        if self.pipes:
            self.read_pipe(kind)

    def read_pipe(self, kind):
        """Reads what is in a pipe, and no more than fits into one: some programs never stop to write."""
        size = 0
        while size < MAX_DATA:
            try:
                data = os.read(self.pipes[kind], MAX_DATA)
            except BlockingIOError:
                return
            if not data:
                return
            self.collect()
            self.frame(kind, data)
            size += len(data)

    def watch(self):
        """Puts pipes in the place of the capture files: a program may be about to be started."""
        with self.lock:
            if self.pipes:
                return
            pipes = {}
            for kind, fd in (STDOUT, 1), (STDERR, 2):
                reader, writer = os.pipe()
                high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, self.server.PRIVATE_FD)
                os.close(reader)
                os.set_blocking(high, False)
                os.dup2(writer, fd)
                os.close(writer)
                pipes[kind] = high
            self.pipes = pipes

    def pump(self):
        """Starts the thread that sends what is collected, and what comes through the pipes."""
        with self.lock:
            if not self.pumping:
                self.pumping = self.pumped = True
                _thread.start_new_thread(self.run_pump, ())

    def run_pump(self):
        poller = select.poll()
        watched = ()
        while True:
            if self.pipes and not watched:
                watched = list(self.pipes.values())
                for fd in watched:
                    poller.register(fd, select.POLLIN)
            ready = poller.poll(1000 * TICK)
            with self.lock:
                if not self.pumping:
                    break
                if ready:
                    self.read_pipe(STDOUT)
                    self.read_pipe(STDERR)
                self.collect()
                self.push()
            if ready:
                time.sleep(TICK / 10)  # what comes in drops is sent by the cupful
        throw_away(self.pipes.values() if self.pipes else ())

    def close(self):
        """Puts the capture files back in their places. The pipes go when the last program lets go of them."""
        if self.pipes:
            for capture in self.server.captures.values():
                os.dup2(capture.file, capture.fd)
            if not self.pumped:
                _thread.start_new_thread(throw_away, (self.pipes.values(),))


class Nowhere:
    """A connection whose other end has gone."""

    send = staticmethod(len)


def throw_away(pipes):
    """Reads pipes until the last program that a run has left behind lets go of them, which must not have to wait."""
    poller = select.poll()
    left = set(pipes)
    for fd in left:
        os.set_blocking(fd, False)
        poller.register(fd, select.POLLIN)
    while left:
        for fd, _ in poller.poll():
            try:
                if os.read(fd, MAX_DATA):
                    continue
            except BlockingIOError:
                continue
            except OSError:
                pass
            poller.unregister(fd)
            left.discard(fd)
            os.close(fd)


class Runner:
    """Runs code for a server, which is the Runtime of python.py."""

    notebook = None  # set when it is there

    def __init__(self, server, shown):
        self.server = server
        self.shown = shown
        self.outlet = None
        self.count = 0
        self.loop = None
        self.hook()

    def hook(self):
        """Has a run know of programs that are about to be started."""
        import _posixsubprocess

        def noted(function):
            def call(*args, **options):
                self.programs()
                return function(*args, **options)

            call.__name__, call.__doc__ = function.__name__, function.__doc__
            return call

        _posixsubprocess.fork_exec = noted(_posixsubprocess.fork_exec)
        if hasattr(sys.modules.get("subprocess"), "_fork_exec"):
            sys.modules["subprocess"]._fork_exec = _posixsubprocess.fork_exec
        for name in "system", "posix_spawn", "posix_spawnp":
            setattr(os, name, noted(getattr(os, name)))
        # It means the thread that passes on what the forked process writes, which needs no lock of Python's in there.
        warnings.filterwarnings("ignore", ".*is multi-threaded, use of fork", DeprecationWarning)
        os.register_at_fork(before=self.before_fork, after_in_parent=self.after_fork)

    def programs(self):
        self.before_fork()
        self.after_fork()

    def before_fork(self):
        if self.outlet and not self.server.forked:
            self.server.stdout.flush()
            self.server.stderr.flush()
            self.outlet.watch()

    def after_fork(self):
        if self.outlet and not self.server.forked:
            self.outlet.pump()

    def execute(self, connection, request):
        """Runs a request and sends what comes of it."""
        server = self.server
        server.count += 1
        self.count += 1
        name = f"Cell In[{self.count}]"
        outlet = Outlet(server, connection)
        self.shown.figures.clear()
        server.interrupted = False
        server.stdout.sink = server.stderr.sink = outlet.write
        self.outlet = outlet
        former = setenv(request.get("env"))
        last, error, value = None, None, ()
        try:
            server.current[0] = request["id"]  # from here to the next assignment an interrupt raises KeyboardInterrupt
            value = self.evaluate(request["code"], name)
            if value and value[0] is not None:
                last = self.shown.frame(value[0], True)
            value = ()
            if "matplotlib" in sys.modules and self.notebook.open_figures():
                if last:
                    outlet.display(last)
                    last = None
                self.notebook.show_figures()
            server.current[0] = 0
        except BaseException as e:
            server.current[0] = 0
            error = e
            linecache.cache.setdefault(name, (0, None, request["code"].splitlines(True), name))
        if former:
            setenv(former)
        if server.forked:
            self.leave(error)
        outlet.end(self.ending(request["id"], error), last)
        error = value = None
        if name not in server.sources:
            linecache.cache.pop(name, None)
        self.outlet = None
        outlet.close()
        if len(sys.modules) != server.modules:
            server.tell_states()
        if server.standard.poll(0):
            server.mend()

    def leave(self, error):
        """User code called os.fork and came back here in the child. It ends as a script would."""
        if error and not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
        self.server.stdout.flush()
        self.server.stderr.flush()
        os._exit(1 if error else 0)

    def ending(self, number, error):
        body = b'{"id":%d,"count":%d' % (number, self.count)
        if error is not None:
            body += b',"error":' + self.describe(error)
        return body + b"}"

    def describe(self, error):
        described = json.loads(self.server.describe(error, self.server.interrupted))
        body = {"name": type(error).__name__, "value": described["message"], "traceback": described["traceback"]}
        if described.get("interrupted"):
            body["interrupted"] = True
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "backslashreplace")

    def evaluate(self, code, name):
        """Runs code as a cell of a notebook: what is no Python may be something for the notebook."""
        try:
            return self.server.run(code, name)
        except SyntaxError as e:
            error = e
        if compiles(code, name):
            raise error  # out of the code itself
        translated = self.notebook.translate(code, name)
        if translated is None:
            raise error
        if compiles(translated, name):
            return self.server.run(translated, name)
        return self.evaluate_awaiting(translated, name)

    def evaluate_awaiting(self, code, name):
        """Runs code that awaits something outside of functions, on one event loop for the life of the interpreter."""
        import asyncio

        self.server.remember(code, name)
        if not self.loop or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST)
        last = tree.body.pop() if tree.body and type(tree.body[-1]) is ast.Expr else None
        made = None
        for part, mode in (tree, "exec"), (last and ast.Expression(last.value), "eval"):
            if part:
                made = eval(compile(part, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), self.server.namespace)
                if asyncio.iscoroutine(made):
                    made = self.loop.run_until_complete(made)
        return (made,) if last else ()


def compiles(code, name):
    try:
        compile(code, name, "exec")
    except SyntaxError:
        return False
    return True


def setenv(entries):
    """Sets variables of the environment; an entry without a '=' removes one. Returns the entries that undo it."""
    former = []
    for entry in entries or ():
        name, given, value = entry.partition("=")
        old = os.environ.get(name)
        former.append(name if old is None else f"{name}={old}")
        if given:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
    return former[::-1]
