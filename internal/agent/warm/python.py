"""Warm Python: evaluates and runs code that the host sends, in one namespace that lives as long as the process.

Started by the guest agent with descriptors 0 = /dev/null, 1 and 2 = append-only capture files, 3 = control socket to the
agent, 4 = page shared with the agent, 5 = listening socket for the host. docs/agent-protocol.md describes the frames and
the page.

Every forked child pays for what runs here, so an evaluation uses few system calls, no threads, and one receive buffer.
"""
import builtins

# Functions look builtins up in this private copy, so that user code may spoil its own without spoiling the server.
__builtins__ = dict(vars(builtins))

import _random, _socket, ast, binascii, collections, fcntl, functools, gc, io, itertools, json, linecache, marshal, mmap, operator, os, random, re
import select, signal, socket, struct, sys, traceback, types, warnings

# Frame types and limits, as in package wire.
OK, ERROR, STDOUT, STDERR, EVAL, RESULT, RUN, EVAL_COMPILED = 3, 4, 18, 19, 48, 49, 50, 53
MAX_FRAME = 16 << 20
MAX_DATA = 64 << 10
HEADER = struct.Struct("<IB")
COMPILED = struct.Struct("<QI")  # before code and what it compiles to
HEADER_SIZE, COMPILED_SIZE = HEADER.size, COMPILED.size

# Limits of the output, of the value and of the repr, in bytes. Value, repr and error share one result frame.
LIMITS = 1 << 20, 4 << 20, 64 << 10
VALUE_CEILING, REPR_CEILING = 8 << 20, 1 << 20
MAX_KEPT = 4 << 10  # of an expression that is kept compiled
MAX_TEXT = 64 << 10  # of a message, and of each half of a traceback

# The shared page, as in package warm.
COMMAND, STATE, GO, RESEED, RENEW, ANSWER, ASLEEP = 0, 1, 2, 3, 4, 5, 6
CURRENT, TARGET, SEQUENCE, STATES = slice(8, 16), slice(16, 24), slice(24, 32), slice(32, 48)
SEED, SEED_RANDOM, SEED_NUMPY, PAGE = slice(64, 128), slice(128, 2624), slice(2624, 5120), 8192
HOLD, INTERRUPT = 1, 2
NUMPY = "numpy.random.mtrand"
POOL, POOL_HEAD, MAX_GAPS = 16 << 10, 48, 256 << 10  # of the interpreter's allocator, in bytes; gaps of blocks of one size
SIGNAL = 60  # real-time, unlikely to be anybody's; the agent sends it after writing a command

CODE = types.CodeType
SAFE_INT = 2**53 - 1  # JSON readers that use doubles lose anything beyond
BIG_DIGITS = re.compile("[0-9]{16}")
PRIVATE_FD = 64  # our descriptors live above this, out of the way of user code
OURS = {__file__}  # files whose frames are left out of tracebacks


def load(name):
    """Returns a module of ours that lies beside this file. User code does not find it by a name."""
    path = os.path.join(os.path.dirname(__file__), f"python_{name}.py")
    module = types.ModuleType("forkd." + name)
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)
    OURS.add(path)
    return module


def private(fd):
    """Moves a descriptor up and keeps child processes from inheriting it."""
    new = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, PRIVATE_FD)
    os.close(fd)
    return new


class Capture:
    """What lies behind a standard stream. Output beyond the limit is counted and dropped, never an error."""

    def __init__(self, name, fd, kind):
        self.name = name
        self.fd = fd
        self.kind = kind  # of its frames
        self.file = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, PRIVATE_FD)
        self.limit = LIMITS[0]
        self.passed = 0  # bytes that the stream gave to the file since the last take
        self.dropped = 0
        self.again = b""  # what the sink has got although the stream does not know
        self.sink = None  # takes what the stream gives, while code runs whose output is passed on at once
        self.open()

    def open(self):
        """Makes the stream that user code sees."""
        stream = io.TextIOWrapper(io.BufferedWriter(Bottom(self)), "utf-8", "surrogateescape", line_buffering=True)
        setattr(sys, self.name, stream)

    def write(self, data):
        size = len(data)
        if self.sink:
            self.pass_on(data)
            return size
        data = data[: max(self.limit - self.passed, 0)]
        self.dropped += size - len(data)
        while data:
            try:
                written = os.write(self.fd, data)
            except OSError:
                # The file is full, or user code closed or redirected our descriptor.
                self.mend()
                self.dropped += len(data)
                break
            self.passed += written
            data = data[written:]
        return size

    def pass_on(self, data):
        """Gives data to the sink. After an exception, which may be out of any signal handler, the stream will come with the
        same data again."""
        again, self.again = self.again, b""
        if again and data[: len(again)] == again:
            data = data[len(again) :]
        if data:
            try:
                self.sink(self.kind, data)
            except BaseException:
                self.again = bytes(data)
                raise

    def mend(self):
        """Puts the capture file back in its place if user code has closed the descriptor."""
        try:
            os.get_inheritable(self.fd)
        except OSError:
            os.dup2(self.file, self.fd)

    def flush(self):
        """Flushes the stream, also one that user code put in its place, and replaces it if it is broken."""
        try:
            getattr(sys, self.name).flush()
        except BaseException:
            self.open()

    def take(self):
        """Returns what the file has got since the last call, how much was written in all, and whether some is missing."""
        size = os.lseek(self.file, 0, os.SEEK_END)
        total = size + self.dropped
        data = b""
        if size:
            data = os.pread(self.file, min(size, self.limit), 0)
            os.ftruncate(self.file, 0)
        self.passed = self.dropped = 0
        return data, total, len(data) < total


class Bottom(io.RawIOBase):
    """The lowest layer of a captured stream. Closing it closes nothing."""

    closed = False  # not a property, which would take several times as long: each flush looks at it twice

    def __init__(self, capture):
        self.capture = capture

    def close(self):
        self.closed = True

    def fileno(self):
        return self.capture.fd

    def writable(self):
        return True

    def write(self, data):
        return self.capture.write(memoryview(data).cast("B"))


class Omitted(Exception):
    """Carries the reason why a value does not travel as JSON."""


def fits(value):
    """Reports whether every integer in plain JSON data is one that every reader keeps."""
    kind = type(value)
    if kind is int:
        return -SAFE_INT <= value <= SAFE_INT
    if kind is list:
        return all(map(fits, value))
    if kind is dict:
        return all(map(fits, value.values()))
    return True


# The C functions behind json.dumps and json.loads; what the module puts before them costs more than they do.
quote = json.encoder.encode_basestring
decode = json.JSONDecoder().scan_once


def refuse_type(value):
    raise TypeError(f"{type(value).__name__} is no JSON type")


# It does not look for circles, which end in a RecursionError all the same.
encoder = json.encoder.c_make_encoder(None, refuse_type, quote, None, ":", ",", False, False, False)


def encode(value):
    return "".join(encoder(value, 0))


def numeric(value, kind):
    """Reports whether a value of a type is a number, or a list of numbers, that every reader keeps. Its repr is JSON then, but for infinities
    and NaN. To find that out takes less than to encode the value, and to see whether reading that yields the same."""
    for one in value if kind is list else (value,):
        if type(one) is not float and not (type(one) is int and -SAFE_INT <= one <= SAFE_INT):
            return False
    return True


def to_json(value, kind, limit):
    """Returns a value of a type as JSON if reading that back yields an equal value of the same types, else raises Omitted."""
    if kind is str and len(value) > limit:
        raise Omitted("too_large")
    try:
        text = encode(value)
        size = len(text.encode())
        faithful = kind is str or kind is bool or value is None
        if not faithful and decode(text, 0)[0] == value:
            faithful = not BIG_DIGITS.search(text) or fits(value)
    except (TypeError, ValueError, RecursionError):
        # No JSON type, a circle, NaN or an infinity, a lone surrogate, or nested too deep.
        raise Omitted("not_json") from None
    if not faithful:
        raise Omitted("not_json")
    if size > limit:
        raise Omitted("too_large")
    return text


def render(value, limits):
    """Returns the members of the result that describe a value."""
    kind = type(value)
    same = value[:] if kind is list else value  # a list may change meanwhile
    plain = numeric(same, kind)
    text = repr(same if plain else value)
    if type(text) is not str:
        text = "".join((text,))  # of a class of its own, whose methods may do anything
    if plain and "n" in text:
        plain = False
    _, most, longest = limits
    name = KIND_NAMES.get(kind) or quote(kind_name(kind))
    shown = text if len(text) <= longest else text[:longest]
    shown = f'"{shown}"' if plain else quote(shown)
    if len(text) > longest:
        shown += ',"repr_cut":true'
    try:
        if not plain:
            text = to_json(value, kind, most)
        elif len(text) > most:
            text = text.replace(", ", ",")  # otherwise it takes less to send the blanks
            if len(text) > most:
                raise Omitted("too_large")
    except Omitted as reason:
        return f',"type":{name},"repr":{shown},"value_omitted":"{reason}"'
    return f',"type":{name},"repr":{shown},"value":{text}'


def kind_name(kind):
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


KIND_NAMES = {kind: quote(kind_name(kind)) for kind in (bool, bytes, dict, float, int, list, set, str, tuple, type(None))}


def shorten(text):
    if len(text) <= 2 * MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n… {len(text) - 2 * MAX_TEXT} characters left out …\n{text[-MAX_TEXT:]}"


def describe(error, interrupted):
    """Returns an exception as the JSON of an EvalError. User code's exceptions may fail at being described."""
    try:
        message = str(error)
    except BaseException as e:
        message = f"<the message could not be made: {type(e).__name__}>"
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename in OURS:
        trace = trace.tb_next
    try:
        trace = "".join(traceback.format_exception(type(error), error, trace))
    except BaseException as e:
        trace = f"<the traceback could not be made: {type(e).__name__}>\n"
    body = {"type": kind_name(type(error)), "message": shorten(message), "traceback": shorten(trace)}
    if isinstance(error, SystemExit):
        code = error.code
        body["exit_code"] = code & 0xFF if isinstance(code, int) else 0 if code is None else 1
    if interrupted and isinstance(error, KeyboardInterrupt):
        body["interrupted"] = True
    return encode(body)


def decoded(payload):
    request, _ = decode(payload.decode(), 0)
    return request


def checked(request):
    """Returns the arguments of evaluate that a request stands for."""
    number, code = request["id"], request["code"]
    if type(code) is not str or type(number) is not int or not 0 < number < 2**64:
        raise ValueError("malformed members")
    if len(request) == 2:
        return number, code, LIMITS, False, None
    output, value, text = given = [request.get(name, 0) for name in ("max_output", "max_value", "max_repr")]
    if any(type(limit) is not int or limit < 0 for limit in given) or request.get("compile", True) is not True:
        raise ValueError("malformed members")
    if request.keys() - {"id", "code", "compile", "max_output", "max_value", "max_repr"}:
        raise ValueError("unknown members")
    limits = output or LIMITS[0], min(value or LIMITS[1], VALUE_CEILING), min(text or LIMITS[2], REPR_CEILING)
    return number, code, limits, "compile" in request, None


def checked_compiled(payload, fresh):
    """Is checked for code that was compiled elsewhere, which counts in a fresh process."""
    number, size = COMPILED.unpack_from(payload)
    end = COMPILED_SIZE + size
    if not number or end > len(payload):
        raise ValueError("no id, or less than there should be")
    return number, payload[COMPILED_SIZE:end].decode(), LIMITS, False, loaded(payload[end:]) if fresh else None


def checked_run(request):
    """Returns a request to run code if it is valid."""
    checked({"id": request["id"], "code": request["code"]})
    entries = request.get("env", [])
    if request.keys() - {"id", "code", "env"} or type(entries) is not list:
        raise ValueError("malformed or unknown members")
    if not all(type(entry) is str and entry.find("=") > 0 and "\0" not in entry for entry in entries):
        raise ValueError("malformed environment")
    return request


def translate(code, name):
    """Compiles code. Returns its statements, or None, and the expression that it ends with, or None."""
    try:
        return None, compile(code.lstrip(" \t"), name, "eval")
    except SyntaxError:
        pass  # statements, or really wrong; leave this block so that the error to come has no context
    tree = compile(code, name, "exec", ast.PyCF_ONLY_AST)
    last = tree.body and type(tree.body[-1]) is ast.Expr and tree.body.pop()
    statements = compile(tree, name, "exec") if tree.body else None
    return statements, compile(ast.Expression(last.value), name, "eval") if last else None


def translate_for_others(code, name):
    """Compiles code for processes that are as this one is. Returns bytes, or raises what keeps them from taking it: what is
    wrong, or to be told where the code is evaluated, or does not come out as it was."""
    with warnings.catch_warnings(record=True) as said:
        translation = translate(code, name)
    if said:
        raise said[0].message
    if unordered(translation):
        raise ValueError("the order of a set is not kept")
    return marshal.dumps(translation)


def unordered(constant):
    """Reports whether a constant, or one in it, is a set, of which what is written has another order."""
    if type(constant) is types.CodeType:
        constant = constant.co_consts
    return type(constant) is frozenset or type(constant) is tuple and any(map(unordered, constant))


def loaded(data):
    """Returns a translation that was written elsewhere, or None if it cannot be read."""
    try:
        statements, expression = translation = marshal.loads(data)
    except Exception:
        return None
    if (statements is None or type(statements) is CODE) and (expression is None or type(expression) is CODE):
        return translation


class Runtime:
    """The namespace, the streams and the connections."""

    HEADER, PRIVATE_FD, describe = HEADER, PRIVATE_FD, staticmethod(describe)  # for modules of ours

    def __init__(self, control, page, listener):
        self.control = control
        self.page = page
        self.current = page[CURRENT].cast("Q")  # id of the running evaluation, 0 for none; the agent reads it
        self.target = page[TARGET].cast("Q")  # id of the evaluation that the agent wants interrupted
        self.listener = listener
        self.count = 0  # of evaluations, for the names of their code
        self.interrupted = False
        self.forked = False
        self.renewing = False
        self.fresh = True  # nothing was evaluated since the last hold or branch, so nobody has waited for that to end
        self.sink = collections.deque((), 0)  # what draws from an iterator
        self.spin = ()  # what the last hold was made of
        self.gaps = []  # what lies in the allocator's gaps
        self.states = page[STATES].cast("Q")  # addresses of generators' states, for the agent
        self.generators = []  # those, kept alive
        self.modules = 0  # how many were loaded when the states were looked up
        self.sources = collections.deque()
        self.expressions = {}  # compiled, by their source text, oldest first
        self.streams = self.stdout, self.stderr = Capture("stdout", 1, STDOUT), Capture("stderr", 2, STDERR)
        self.captures = {STDOUT: self.stdout, STDERR: self.stderr}
        self.standard = select.poll()  # finds closed descriptors, all three at once
        for fd in 0, 1, 2:
            self.standard.register(fd, 0)
        main = types.ModuleType("__main__")
        main.__builtins__ = builtins
        sys.modules["__main__"] = main
        self.namespace = main.__dict__
        self.runner = self.furnish()

    def move(self, control, page, listener):
        """Makes a process that a spare has forked one of its own."""
        self.control, self.page, self.listener = control, page, listener
        self.current, self.target, self.states = (page[where].cast("Q") for where in (CURRENT, TARGET, STATES))
        self.generators.clear()
        self.modules = 0
        self.forked = False
        for capture in self.captures.values():
            os.dup2(capture.fd, capture.file, inheritable=False)

    def furnish(self):
        """Returns what runs code as a notebook does."""
        shown = load("display").Display()
        shown.chart = load("charts").chart
        run = load("run")
        runner = run.Runner(self, shown)
        runner.notebook = load("notebook").Notebook(self, shown, lambda: runner.outlet)
        return runner

    # Evaluation.

    def run(self, code, name, translation=None):
        """Runs code, or what it was translated to elsewhere; returns a tuple with the value of its last expression, or an empty
        one."""
        expression = self.expressions.get(code)
        if not expression:
            statements, expression = translation or translate(code, name)
            if expression and not statements:
                self.keep(code, expression)
            else:
                self.remember(code, name)
            if statements:
                exec(statements, self.namespace)
        return (eval(expression, self.namespace),) if expression else ()

    def keep(self, code, compiled):
        """Keeps a compiled expression: compiling costs more than everything else about the evaluation of a short one."""
        if len(code) <= MAX_KEPT:
            if len(self.expressions) >= 64:
                del self.expressions[next(iter(self.expressions))]
            self.expressions[code] = compiled
        return compiled

    def remember(self, code, name):
        """Keeps source text, so that a traceback can show lines of functions defined earlier."""
        linecache.cache[name] = len(code), None, code.splitlines(True), name
        self.sources.append(name)
        if len(self.sources) > 256:
            linecache.cache.pop(self.sources.popleft(), None)

    def evaluate(self, number, code, limits, compile_only, translation):
        """Evaluates code, of which the translation may be known, and returns the frames of the answer."""
        self.count += 1
        known = self.expressions.get(code) or translation and (translation[0] or translation[1])
        name = known.co_filename if known else f"<eval-{self.count}>"
        self.interrupted = False
        self.stdout.limit = self.stderr.limit = limits[0]
        try:
            self.current[0] = number  # from here to the next assignment an interrupt raises KeyboardInterrupt
            if compile_only:
                bytecode = binascii.b2a_base64(translate_for_others(code, name), newline=False)
                body = f',"bytecode":"{bytecode.decode()}"'
            else:
                value = self.run(code, name, translation)
                body = render(value[0], limits) if value else ""
            self.current[0] = 0
        except BaseException as error:
            self.current[0] = 0
            linecache.cache.setdefault(name, (0, None, code.splitlines(True), name))
            body = f',"error":{describe(error, self.interrupted)}'
            if name not in self.sources:
                linecache.cache.pop(name, None)
        value = None
        if len(sys.modules) != self.modules:
            self.tell_states()
        if self.forked:
            # User code called os.fork and came back here in the child. It ends as a script would.
            self.stdout.flush()
            os._exit(1 if body.startswith(',"error"') else 0)
        return self.answer(number, body)

    def answer(self, number, body):
        """Returns the frames of an answer: what was written, and the result, of which body has most members."""
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            for capture in self.streams:
                capture.flush()
        out, err = self.streams
        written = b""
        if os.lseek(out.file, 0, os.SEEK_END) or os.lseek(err.file, 0, os.SEEK_END) or out.dropped or err.dropped:
            written, members = self.output()
            body += members
        if self.standard.poll(0):
            self.mend()
        body = f'{{"id":{number}{body}}}'.encode("utf-8", "backslashreplace")
        result = HEADER.pack(len(body), RESULT) + body
        return written + result if written else result

    def output(self):
        """Returns what was written since the last answer, in frames, and the members of a result that tell of it."""
        frames, members = [], ""
        for capture in self.streams:
            data, total, cut = capture.take()
            for start in range(0, len(data), MAX_DATA):
                piece = data[start : start + MAX_DATA]
                frames += HEADER.pack(len(piece), capture.kind), piece
            if total:
                members += f',"{capture.name}_bytes":{total}'
            if cut:
                members += f',"{capture.name}_cut":true'
        return b"".join(frames), members

    def mend(self):
        """Opens the standard descriptors again that user code has closed."""
        self.stdout.mend()
        self.stderr.mend()
        try:
            os.get_inheritable(0)
        except OSError:
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)

    # Connections.

    def serve(self, listener, all=True):
        """Serves connections, in the order in which they came: all that ever come, or until those that are there have ended."""
        poller = select.poll()
        events, hung_up = select.POLLIN | select.POLLRDHUP, select.POLLRDHUP | select.POLLHUP | select.POLLERR
        listening, family = listener.fileno(), int(listener.family)
        poller.register(listening, select.POLLIN)
        connections = {}
        while True:
            waited = False  # since the poller told
            for fd, event in poller.poll():
                if fd == listening:
                    fd, _ = listener._accept()
                    poller.register(fd, events)
                    # What comes with a connection is mostly there already. The class in C does without a name for it all.
                    connections[fd] = _socket.socket(family, socket.SOCK_STREAM, 0, fd)
                    # The poller yields the listener first, but what others have sent may be older; and who had to wait
                    # may have hung up.
                    if len(connections) > 1 or not self.fresh or self.step(connections[fd], socket.MSG_DONTWAIT):
                        waited = True
                        continue
                elif not ((waited or event & hung_up) and left(connections[fd])) and self.step(connections[fd], 0):
                    waited = True
                    continue
                poller.unregister(fd)
                connections.pop(fd).close()
            if not all and not connections:
                return

    def step(self, connection, flags):
        """Reads what has arrived and answers the requests in it. Returns False when the connection is done with."""
        try:
            data = connection.recv(MAX_DATA, flags)
            if not data:
                return False
            while True:
                if len(data) < HEADER_SIZE:
                    data = filled(connection, data, HEADER_SIZE)
                size, kind = HEADER.unpack_from(data)
                if size > MAX_FRAME:
                    return self.refuse(connection, "bad_request", "frame is larger than the protocol allows")
                end = HEADER_SIZE + size
                if len(data) < end:
                    data = filled(connection, data, end)
                going = self.handle(connection, kind, data[HEADER_SIZE:end])
                self.fresh = False
                if not going:
                    return False
                if len(data) == end:
                    return True
                data = data[end:]
        except BlockingIOError:
            return True  # nothing has come yet
        except OSError:
            return False

    def handle(self, connection, kind, payload):
        try:
            if kind == EVAL_COMPILED:
                request = checked_compiled(payload, self.fresh)
            elif kind == EVAL:
                request = checked(decoded(payload))
            elif kind == RUN:
                request = checked_run(decoded(payload))
            else:
                return self.refuse(connection, "unknown_frame", f"frame type {kind} has no place here")
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError, struct.error) as e:
            return self.refuse(connection, "bad_request", f"evaluation request is not readable: {e!r}")
        if kind == RUN:
            self.runner.execute(connection, request)
        else:
            number, code, limits, compile_only, translation = request  # a call of *request would take longer
            connection.sendall(self.evaluate(number, code, limits, compile_only, translation))
        return True

    def refuse(self, connection, code, message):
        body = json.dumps({"code": code, "message": message}).encode()
        connection.sendall(HEADER.pack(len(body), ERROR) + body)
        return False

    # Commands of the agent.

    def on_signal(self, number, frame):
        if self.forked or self.renewing:
            return
        while self.page[RENEW]:
            self.page[RENEW] = 0
            self.renew()
        command = self.page[COMMAND]
        self.page[COMMAND] = 0
        if command == HOLD:
            self.hold()
        elif command == INTERRUPT and self.current[0] and self.current[0] == self.target[0]:
            self.interrupted = True
            raise KeyboardInterrupt

    def on_sigint(self, number, frame):
        if self.current[0] and not self.renewing:
            raise KeyboardInterrupt

    def hold(self):
        """Waits for the agent's word, and reseeds if it says so, before any Python code of any thread can run.

        The interpreter lock is given up between bytecodes and in blocking calls. So everything between the mark that we
        hold and the last step is one call of a C function that drives C iterators: no other thread runs until it is over.
        It sleeps until then if it can, or else spins, while the agent has the process frozen. What there is to do afterwards
        the agent does if it can, by overwriting the generators' states, and then expects no answer. The iterators are kept,
        as it would be every child that frees them.
        """
        page = self.page
        self.fresh = True
        try:
            self.gaps = []
            gc.collect()
            gc.freeze()
            self.gaps = fill_gaps()
            self.tell_states()
            page[ANSWER] = answers = not self.told()
            steps = reseed_steps(page) if answers else ()
            resets, stale = plain_resets(), []
            ordered = map(page.__getitem__, itertools.repeat(RESEED))
            over = functools.partial(page.__getitem__, GO)
            waiting = iter(over, 1)
            sleep = sleeper(page)
            page[ASLEEP] = sleep is not None
            if sleep:
                waiting = zip(waiting, iter(sleep, None))
            parts = (
                map(stale.append, itertools.compress(zip(*resets), map(operator.is_not, map(getattr, *resets[:2]), resets[2]))),
                map(page.__setitem__, (STATE,), (1,)),
                waiting,
                itertools.starmap(setattr, itertools.compress(stale, ordered)),  # which is mostly none
                map(functools.partial.__call__, itertools.compress(steps, ordered)),
            )
            self.spin = parts, over, sleep, resets
            self.sink.extend(itertools.chain.from_iterable(parts))
            if not answers:
                return
            error = None
        except BaseException as e:
            error = e
        self.report(error)

    def renew(self):
        """Reseeds in a child of a branch, in which the process finds itself anywhere. Other threads may run meanwhile; the
        agent has overwritten the states that it was told of."""
        self.fresh = not self.current[0]
        self.renewing = True
        try:
            collections.deque(map(functools.partial.__call__, reseed_steps(self.page, self.generators)), 0)
        except BaseException as e:
            error = e
        else:
            error = None
        self.renewing = False
        self.report(error)

    def report(self, error):
        """Tells the agent, if there is one, that its order has been carried out, or why it has not."""
        if not self.control:
            return
        kind, answer = OK, b""
        if error:
            kind = ERROR
            answer = encode({"code": "refresh_failed", "message": f"{type(error).__name__}: {error}"}).encode("utf-8", "replace")
        self.control.sendall(HEADER.pack(8 + len(answer), kind) + bytes(self.page[SEQUENCE]) + answer)

    def tell_states(self):
        """Tells the agent where the states of the global generators are. They are kept, so that the places stay theirs."""
        self.modules = len(sys.modules)
        for i, find in enumerate((random_state, numpy_state)):
            if not self.states[i]:
                try:
                    generator, self.states[i] = find()
                    self.generators.append(generator)
                except Exception:
                    pass  # it is not there, or not as expected

    def told(self):
        """Reports whether whoever overwrites the states that the agent was told of leaves nothing to do but plain_resets."""
        if "_ssl" in sys.modules or not hasattr(random, "_inst"):
            return False
        try:
            if self.states[0] != random_state()[1]:
                return False
            if NUMPY not in sys.modules:
                return True
            return self.states[1] == numpy_state()[1] and not sys.modules[NUMPY]._rand.get_state()[3]
        except Exception:
            return False

    def after_fork(self):
        """In a child that user code forked: it must neither serve nor keep the host's connections open."""
        self.forked = True
        self.control.close()
        self.listener.close()
        self.runner.outlet = self.stdout.sink = self.stderr.sink = None  # its output takes the way of any program's


def filled(connection, data, size):
    """Returns data with more that is received, until it is of a size at least."""
    data = bytearray(data)
    while len(data) < size:
        more = connection.recv(1 << 20)
        if not more:
            raise ConnectionError("the client has left in the middle of a frame")
        data += more
    return data


def left(connection):
    """Reports whether nobody reads what is sent on a connection any more; what came on it is then nobody's wish."""
    try:
        connection.send(b"", socket.MSG_NOSIGNAL)  # which sends nothing
    except OSError:
        return True
    return False


def sleeper(page):
    """Returns a C function that sleeps as long as the page says that we hold, and keeps the interpreter lock; None if there
    is no such function here."""
    try:
        import ctypes

        number = {"riscv64": 98, "x86_64": 202}[os.uname().machine]  # of the system call futex
        words = ctypes.c_uint32.from_buffer(page)
        holding = int.from_bytes(bytes((0, 1, 0, 0)), sys.byteorder)  # COMMAND, STATE, GO, RESEED
        arguments = map(ctypes.c_long, (number, ctypes.addressof(words), 0, holding, 0))
        return functools.partial(ctypes.PyDLL(None).syscall, *arguments)
    except Exception:
        return None


def chained(function, *arguments):
    """A step that computes function(*arguments) in C; each argument is an iterator that yields it when the step runs."""
    return functools.partial(collections.deque, map(function, *arguments), 0)


def seed(page, where):
    return map(page.__getitem__, (where,))


def reseed_steps(page, renewed=()):
    """Returns callables that give the process's random generators new states from the seed in the page, but to those whose
    states were overwritten already."""
    steps = [functools.partial(setattr, *reset) for reset in zip(*plain_resets())]
    modules = sys.modules
    if hasattr(random, "_inst") and not any(random._inst is one for one in renewed):
        steps.append(random_step(page, random._inst))
    if NUMPY in modules:
        steps += numpy_steps(page, modules[NUMPY]._rand, renewed)
    if "_ssl" in modules:
        steps.append(chained(modules["_ssl"].RAND_add, map(bytes, seed(page, SEED)), (64.0,)))
    return steps


def plain_resets():
    """Returns what has to be None again where it is not: the objects, the names of their attributes, and as many None."""
    resets = []
    if hasattr(random, "_inst"):
        resets.append((random._inst, "gauss_next"))
    if "uuid" in sys.modules:
        # The C library's time-based generator keeps a clock sequence that cannot be reset; the Python one draws it anew.
        resets += ((sys.modules["uuid"], name) for name in ("_node", "_last_timestamp", "_generate_time_safe"))
    if "tempfile" in sys.modules:
        resets.append((sys.modules["tempfile"], "_name_sequence"))
    objects, names = zip(*resets) if resets else ((), ())
    return objects, names, (None,) * len(objects)


def bytes_at(address, size):
    import ctypes

    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def random_state():
    """Returns the random module's generator and the address of its state: a position and 624 words behind the object's
    head, if what lies there is what getstate says."""
    generator = random._inst
    address = id(generator) + object.__basicsize__
    _, (*words, position), _ = generator.getstate()
    if bytes_at(address, 2500) != struct.pack("=i624I", position, *words):
        raise ValueError
    return generator, address


def numpy_state():
    """Returns numpy.random's global generator and the address of its state: 624 words and a position, if what lies where
    numpy's interface says they are is what get_state says."""
    state = sys.modules[NUMPY]._rand
    generator = state._bit_generator
    address = generator.ctypes.state_address
    name, key, position, _, _ = state.get_state()
    if name != "MT19937" or bytes_at(address, 2500) != key.tobytes() + position.to_bytes(4, "little"):
        raise ValueError
    return generator, address


def write_step(words, where, page, source, position):
    """Writes a generator's words, and that all of them are used up, in their place. A seed function computes them from a
    number, which costs several times as much as the whole rest of a reseed."""
    used = memoryview((624).to_bytes(4, "little"))
    return chained(
        words.__setitem__,
        (slice(where, where + 2496), slice(position, position + 4)),
        itertools.chain(seed(page, source), (used,)),
    )


def random_step(page, instance):
    """The random module's global state."""
    try:
        _, address = random_state()
    except Exception:
        new = map(int.from_bytes, map(bytes, seed(page, SEED_RANDOM)), ("little",))
        return chained(functools.partial(_random.Random.seed, instance), new)
    return write_step(bytes_at(address, 2500), 4, page, SEED_RANDOM, 0)


def numpy_steps(page, state, renewed):
    """numpy.random's global state, with the second one of a pair of Gaussian numbers that it may have to give out."""
    generator = state._bit_generator
    if any(generator is one for one in renewed):
        # Other threads may draw meanwhile, so what they have drawn must not come back with that.
        return [functools.partial(renew_numpy, state, page)] if state.get_state()[3] else []
    try:
        _, address = numpy_state()
    except Exception:
        return [functools.partial(renew_numpy, state, page)]
    _, key, position, gauss, _ = state.get_state()
    steps = [functools.partial(state.set_state, ("MT19937", key, position, 0, 0.0))] if gauss else []
    return [*steps, write_step(bytes_at(address, 2500), 0, page, SEED_NUMPY, 2496)]


def renew_numpy(state, page):
    """Gives numpy.random's global generator a new state in one step, whatever kind it is of."""
    words = page[SEED_NUMPY].cast("I").tolist()
    if state.get_state(legacy=False)["bit_generator"] == "MT19937":
        state.set_state(("MT19937", words, 624, 0, 0.0))
    else:
        generator = state._bit_generator
        generator.state = type(generator)(words[:32]).state


def immortalize():
    """Makes every object that exists now immortal, as the interpreter does with None: its reference count is never written
    again. What imports have made is used all the time and hardly ever freed, and each page that holds a count would have to
    be copied in every forked child that merely looks at it. Does nothing before Python 3.12, or when counts do not look as
    expected.
    """
    before = sys.getrefcount(None)
    more = [None] * 9
    if sys.getrefcount(None) != before:
        return
    try:
        import ctypes
    except ImportError:
        return
    count = ctypes.c_uint64.from_address
    immortal = count(id(None)).value
    if immortal != before or count(id(more)).value + 1 != sys.getrefcount(more):
        return
    # All of memory as numbers; only whole collections are handled in Python code, their elements in C.
    memory = (ctypes.c_uint64 * 2**57).from_address(0)
    done = set()
    things = gc.get_objects()
    while things:
        places = set(map(id, things))
        done |= places
        collections.deque(map(memory.__setitem__, map(operator.rshift, places, itertools.repeat(3)), itertools.repeat(immortal)), 0)
        parts = gc.get_referents(*things)
        for code in things:
            if type(code) is types.CodeType:  # not known to the collector
                parts += code.co_consts, code.co_names
        found = dict(zip(map(id, parts), parts))
        things = list(map(found.__getitem__, found.keys() - done))


def fill_gaps():
    """Has what every child allocates lie close together. The interpreter's allocator hands out blocks of each size from a pool of 16 KiB,
    whose head it writes with each block. In the pools that imports leave, head and blocks are on different pages. So their gaps are filled,
    up to the first block of a new pool, which is right behind the head. Returns what that takes."""
    filling = []
    for size in range(16, 513, 16):
        for _ in range(MAX_GAPS // size):
            filling.append(object() if size == 16 else filler(size))
            if id(filling[-1]) % POOL == POOL_HEAD:
                break
    return filling


def filler(size):
    return float(size) if size == 32 else bytes(size - bytes.__basicsize__)


def receive(control, data=b""):
    """Reads one frame from the agent, of which some may be there."""
    data = bytearray(data)
    while len(data) < 5 or len(data) < 5 + HEADER.unpack_from(data)[0]:
        more = control.recv(MAX_DATA)  # nothing follows a frame before it is answered
        if not more:
            os._exit(70)
        data += more
    return json.loads(data[5:])


def last_payload(frames):
    """Returns what the last of some frames carries."""
    at = 0
    while True:
        size, _ = HEADER.unpack_from(frames, at)
        end = at + HEADER.size + size
        if end >= len(frames):
            return json.loads(frames[at + HEADER.size : end])
        at = end


def warm_up(runtime, config):
    """Imports and exercises what the configuration names. Raises what goes wrong."""
    for module in config["imports"]:
        exec(f"import {module}", runtime.namespace)
    immortalize()
    exercise(runtime, config)


def exercise(runtime, config):
    for code in config["warmup"] + ["0", "[0.5]"]:
        for n in range(10):  # the interpreter adapts its code to what it sees; half of the runs compile anew
            if n < 5:
                runtime.expressions.pop(code, None)
            error = last_payload(runtime.evaluate(1, code, LIMITS, False, None)).get("error")
            if error:
                raise RuntimeError(f"warm-up code {code!r} failed:\n{error['traceback']}")
    rehearse(runtime)


def rehearse(runtime):
    """Goes through what a child begins with, a hold that ends, or new states for generators, and a connection that evaluates, so that
    the interpreter has adapted its code to it, and all that it needs is there. It must not warn: a warning changes the globals, and the
    interpreter would begin anew."""
    rounds = 16
    control, runtime.control = runtime.control, None  # there is nobody to answer to
    for _ in range(rounds):
        runtime.page[GO] = 1
        runtime.page[COMMAND] = HOLD
        runtime.on_signal(SIGNAL, None)
        if runtime.told():  # else the generators would be seeded with what is in the page
            runtime.page[RENEW] = 1
            runtime.on_signal(SIGNAL, None)
    runtime.control = control
    with socket.socket(socket.AF_UNIX) as listener:
        name = f"\0forkd-rehearsal-{os.getpid()}"
        listener.bind(name)
        listener.listen()
        for n in range(2 * rounds):  # half of them with code that was compiled elsewhere
            # The first is read as it is accepted, the second when the poller tells, as one that was there before a snapshot.
            with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
                for client in first, second:
                    client.connect(name)
                    code = f"[0.5, {n}.0, {client.fileno()}.0]"
                    kind, body = EVAL, encode({"id": 1, "code": code}).encode()
                    if n % 2:
                        kind, body = EVAL_COMPILED, COMPILED.pack(1, len(code)) + code.encode() + marshal.dumps(translate(code, "<eval>"))
                    client.sendall(HEADER.pack(len(body), kind) + body)
                    client.shutdown(socket.SHUT_WR)
                runtime.fresh = True
                runtime.serve(listener, False)


def leave_spare(runtime, line):
    """Leaves a process behind that is as this one is now, and forks others when the agent asks for them. It is nobody's
    child here, so that user code does not find it. Returns its order in a process that it has forked."""
    gc.collect()
    gc.freeze()
    try:
        away = fork_away()
    except OSError:
        away = False  # it does without
    if not away:
        line.close()
        return None
    null = os.open("/dev/null", os.O_RDWR)
    for fd in 0, 1, 2, runtime.stdout.file, runtime.stderr.file:
        os.dup2(null, fd, inheritable=fd < 3)
    os.close(null)
    reply(line, STDOUT, {"pid": os.getpid()})
    while True:
        data, fds, _, _ = socket.recv_fds(line, 5, 8)
        if not data:
            os._exit(0)
        order = receive(line, bytearray(data))
        try:
            away, answer = fork_away(), (OK, {})
        except OSError as e:
            away, answer = False, (ERROR, {"code": "exhausted", "message": f"an interpreter could not be forked: {e.strerror}"})
        if away:
            line.close()
            try:
                become(runtime, order, fds)
            except OSError:
                os._exit(1)
            return order
        for fd in fds:
            os.close(fd)
        reply(line, *answer)


def own_pages():
    """Takes copies of the pages that a fork has left shared, now instead of in every child at its first write."""
    try:
        import ctypes

        madvise = ctypes.CDLL(None).madvise
        with open("/proc/self/maps") as file:
            maps = [line.split(maxsplit=5) for line in file]
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            for where, access, *_ in maps:
                if access != "rw-p":
                    continue
                first, end = (int(address, 16) // 4096 for address in where.split("-"))
                present = [entry >> 63 for entry in struct.unpack(f"{end - first}Q", os.pread(pagemap.fileno(), 8 * (end - first), 8 * first))]
                for there, pages in itertools.groupby(range(end - first), present.__getitem__):
                    if there:
                        start, *_ = pages = list(pages)
                        populate = 23  # MADV_POPULATE_WRITE
                        madvise(ctypes.c_void_p((first + start) * 4096), ctypes.c_size_t(len(pages) * 4096), populate)
    except Exception:
        pass  # then the copies are made when they are needed


def fork_away():
    """Forks a process that the agent becomes the parent of. Returns True in there."""
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        if status:
            errno = os.waitstatus_to_exitcode(status)
            raise OSError(errno, os.strerror(errno))
        return False
    try:
        if os.fork():
            os._exit(0)
    except OSError as e:
        os._exit(e.errno)
    os.setsid()
    return True


def become(runtime, order, fds):
    """Makes a process that was forked off a spare what its order says, and waits until the agent has taken it in."""
    null, out, err, control, page, listener = fds
    for fd, new in (null, 0), (out, 1), (err, 2):
        os.dup2(fd, new)
        os.close(fd)
    runtime.move(socket.socket(fileno=private(control)), memoryview(mmap.mmap(private(page), PAGE)), socket.socket(fileno=private(listener)))
    reply(runtime.control, STDOUT, {"pid": os.getpid()})
    receive(runtime.control)
    if order["change"]:
        os.setgroups(order["groups"])
        os.setgid(order["gid"])
        os.setuid(order["uid"])
    os.chdir(order["dir"])
    os.environ.clear()
    for entry in order["env"]:
        name, _, value = entry.partition("=")
        os.environ[name] = value
    collections.deque(map(functools.partial.__call__, reseed_steps(runtime.page)), 0)


def reply(line, kind, body):
    body = json.dumps(body).encode()
    line.sendall(HEADER.pack(len(body), kind) + body)


def gather(*functions):
    """Has the code of functions lie together: the interpreter writes to it at each branch."""
    codes = [function.__code__.replace() for function in functions]
    for function, code in zip(functions, codes):
        function.__code__ = code


def main():
    gather(
        *(Runtime.on_signal, Runtime.hold, Runtime.serve, Runtime.step, Runtime.handle, checked_compiled, loaded, Runtime.evaluate),
        *(Runtime.run, Runtime.keep, render, numeric, to_json, Runtime.answer, Capture.take, Capture.flush, Runtime.mend),
    )
    control = socket.socket(fileno=private(3))
    page = memoryview(mmap.mmap(private(4), PAGE))
    bytes(page)  # mapped from now on
    runtime = Runtime(control, page, socket.socket(fileno=private(5)))
    signal.signal(SIGNAL, runtime.on_signal)
    signal.signal(signal.SIGINT, runtime.on_sigint)
    os.register_at_fork(after_in_child=runtime.after_fork)
    sys.path[0], sys.argv = "", [""]
    config = receive(control)
    try:
        warm_up(runtime, config)
        if config["spare"]:
            if not leave_spare(runtime, socket.socket(fileno=private(6))):
                own_pages()
                exercise(runtime, config)
    except BaseException as e:
        body = json.dumps({"code": "runtime_failed", "message": f"{type(e).__name__}: {e}"[:MAX_TEXT], "detail": shorten(traceback.format_exc())})
        runtime.control.sendall(HEADER.pack(len(body.encode()), ERROR) + body.encode())
        os._exit(1)
    runtime.tell_states()
    gc.collect()
    gc.freeze()
    body = json.dumps({"version": sys.version.split()[0]}).encode()
    runtime.control.sendall(HEADER.pack(len(body), OK) + body)
    try:
        runtime.serve(runtime.listener)
    finally:
        os._exit(70)  # a descriptor of ours was closed under us; the agent starts a new process


main()
