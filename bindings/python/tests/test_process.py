# SPDX-License-Identifier: Apache-2.0
"""What happens to the process around the library: fork, the interpreter's end, Ctrl-C, threads, garbage collection."""
import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import unittest.mock
import weakref

import megadp
import support
from megadp._handles import Lease


def succeeds(call):
    """Whether call() in a forked child returns; prints what it raises instead. The child leaves as Python programs do, by their exit."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            call()
            code = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


# In a SLURM job, but outside of a step of it, the library tells that it starts a single rank.
SPEAKS = """
    import logging, os, sys, megadp
    class Kept(logging.Handler):
        def emit(self, record):
            print("heard", record.levelname, record.getMessage(), flush=True)
            if raising:
                raise ValueError("of the handler")
    raising = False
    logger = logging.getLogger("megadp")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(Kept())
    for name in [name for name in os.environ if name.startswith("MEGADP_R")]:
        del os.environ[name]
    os.environ["SLURM_JOB_ID"] = "1"
    def speak():
        with megadp.Comm() as comm:
            comm.barrier()
"""


class Log(unittest.TestCase):
    def speak(self, body):
        program = textwrap.dedent(SPEAKS) + textwrap.dedent(body)
        ended = subprocess.run([sys.executable, "-c", program], env=support.environment(), text=True, timeout=support.PATIENCE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return support.check_ended(self, ended), ended.stderr

    def test_messages_go_to_a_logger(self):
        out, _ = self.speak("megadp.log_to(logger); speak()")
        self.assertRegex(out, "heard (INFO|WARNING) .*SLURM")

    def test_and_back_to_the_default(self):
        out, _ = self.speak("megadp.log_to(logger); megadp.log_to(None); speak(); print('went on')")
        self.assertEqual(out, "went on\n")

    def test_handlers_that_raise_harm_nothing(self):
        out, err = self.speak("raising = True; megadp.log_to(logger); speak(); print('went on')")
        self.assertRegex(out, "(?s)heard .*went on")
        self.assertIn("of the handler", err)


class Fork(unittest.TestCase):
    def test_child_cannot_use_the_parents_handles(self):
        comm = megadp.Comm()
        buffer = megadp.Buffer(comm, {"w": (2,)})
        optimizer = megadp.Optimizer(buffer)
        view = buffer.param("w").memoryview

        def child():
            for call in (comm.barrier, buffer.sync, buffer.wait, optimizer.step, lambda: comm.split(0), lambda: buffer.param("w")):
                try:
                    call()
                except megadp.MegaDPError as error:
                    assert error.code == megadp.Status.STATE, error
                else:
                    raise AssertionError("not refused")
            assert view.tolist() == [0, 0]
            for made in (comm, buffer, optimizer):
                made.close()
            with megadp.Comm() as own:  # a communicator of its own works
                own.barrier()

        self.assertTrue(succeeds(child))
        buffer.put("w", memoryview(bytes(8)).cast("f"))
        buffer.sync()
        optimizer.step()
        comm.barrier()

    def test_data_loaders(self):
        """Worker processes, forked in the middle of a training, come and go; they collect garbage and leave by the interpreter's end."""
        out = support.check_ended(self, support.run_source(2, """
            import array, gc, multiprocessing, os, sys, megadp
            context = multiprocessing.get_context("fork")
            def batch(t):
                gc.collect()
                return [float(t), float(t + 1)]
            with megadp.Comm() as comm:
                buffer = megadp.Buffer(comm, {"w": (2,)})
                optimizer = megadp.Optimizer(buffer)
                for epoch in range(2):
                    with context.Pool(2) as pool:
                        for values in pool.imap(batch, range(4)):
                            buffer.put("w", array.array("f", values))
                            buffer.sync()
                            report = optimizer.step(wait=False)
                    pid = os.fork()
                    if pid == 0:
                        sys.exit(0)  # runs atexit handlers and destructors
                    assert os.waitpid(pid, 0)[1] == 0
                buffer.wait()
                buffer.verify()
                comm.barrier()
                print(report.step, flush=True)
        """))
        self.assertEqual(out.split(), ["8", "8"])


class Exit(unittest.TestCase):
    def ends_well(self, source, ranks=1, python=()):
        if ranks == 1:
            ended = subprocess.run([sys.executable, *python, "-c", source], env=support.environment(), text=True, timeout=support.PATIENCE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        else:
            ended = support.run_source(ranks, source)
        support.check_ended(self, ended)
        self.assertEqual(ended.stderr, "")
        return ended.stdout

    SETUP = ("import array, ctypes, gc, os, sys, megadp\n"
             "comm = megadp.Comm()\n"
             "buffer = megadp.Buffer(comm, {'w': (2,)})\n"
             "optimizer = megadp.Optimizer(buffer)\n"
             "view = buffer.param('w').memoryview\n")

    def test_nothing_closed(self):
        self.ends_well(self.SETUP)

    def test_cycles_and_leaks(self):
        self.ends_well(self.SETUP + "comm.self = comm; buffer.self = buffer, view\n"
                       "for made in (comm, buffer, view, buffer.param('w').__dlpack__(max_version=(1, 0))):\n"
                       "    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))\n")

    def test_views_are_used_to_the_last(self):
        """By destructors that run after everything has been closed."""
        out = self.ends_well(self.SETUP + "import atexit\n"
                             "class Late:\n"
                             "    def __init__(self, view): self.view = view; self.write = os.write\n"
                             "    def __del__(self): self.view[0] = 3.0; self.write(1, b'%g\\n' % self.view[0])\n"
                             "late = Late(view); sys.late = late; del late\n"
                             "atexit.register(buffer.close)\n")
        self.assertEqual(out, "3\n")

    def test_pending_operations(self):
        self.ends_well(self.SETUP + "buffer.put('w', array.array('f', [1, 2])); buffer.sync(wait=False)\n"
                       "kept = comm.all_reduce(array.array('f', [1.0] * 1000), wait=False)\n"
                       "comm.all_reduce(array.array('f', [1.0] * 1000), wait=False)\n")

    def test_a_thread_inside_a_call(self):
        """Somebody's daemon thread waits in the library, with or without a request, while Python ends."""
        for call in ("comm.split(0)", "comm.barrier()"):
            with self.subTest(call):
                ended = support.run_source(2, self.SETUP + f"""
import threading
inside = threading.Event()
def wait():
    inside.set()
    {call}
if comm.rank == 0:
    threading.Thread(target=wait, daemon=True).start()
    inside.wait()
else:
    try:
        comm.all_reduce(array.array("f", [1.0]))
    except megadp.MegaDPError as error:
        print(error.code.name in ("DESYNC", "PEER"))
""")
                self.assertEqual((ended.stdout.split(), ended.returncode), (["True"], 0), ended.stderr)

    def test_others_hear_a_goodbye(self):
        """Also from a process that ends with views and objects that are never collected: who goes on alone has not lost a peer."""
        source = self.SETUP + """
kept = [view, buffer, optimizer, buffer.param("w")]
kept.append(kept)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
pids = array.array("q", [0, 0])
comm.all_gather(array.array("q", [os.getpid()]), pids)
if comm.rank == 0:
    import select
    peer = os.pidfd_open(pids[1])
    comm.barrier()
    select.select([peer], [], [])
    try:
        comm.barrier()
    except megadp.MegaDPError as error:
        print(error.code.name, error.rank, "left" in error.text and "died" not in error.text)
else:
    comm.barrier()
"""
        self.assertEqual(self.ends_well(source, ranks=2).split(), ["PEER", "1", "True"])


class Interrupts(unittest.TestCase):
    """SIGINT while the main thread waits for a rank that comes only when the interruption has been seen (or never)."""

    SOURCE = """
import array, os, signal, sys, threading, time, megadp
def interrupt_soon():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
def interrupted(call):
    try:
        threading.Thread(target=interrupt_soon).start()
        call()
        print("not interrupted", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
def tell_news():  # it comes by itself; until then a call may succeed, with what the rank that gave up had begun
    for _ in range(3000):
        if comm.error is not None:
            break
        time.sleep(0.01)
    print(comm.error.code.name, comm.error.rank, flush=True)
"""

    def two(self, body):
        with tempfile.TemporaryDirectory() as folder:
            ended = self.run_two(os.path.join(folder, "seen"), body)
        self.assertEqual(ended.stderr, "")  # where Python prints exceptions that got into ctypes
        return support.check_ended(self, ended).splitlines()

    def run_two(self, flag, body):
        return support.run_source(2, self.SOURCE + f"""
flag = {flag!r}
comm = megadp.Comm(timeout=1000)
def seen():
    open(flag, "w").close()
def wait_until_seen():
    while not os.path.exists(flag):
        time.sleep(0.01)
    os.remove(flag)
buffer = megadp.Buffer(comm, [("w", (2,))])
optimizer = megadp.Optimizer(buffer)
def put():
    buffer.put("w", array.array("f", [1, 2]))
""" + body)

    def test_request(self):
        """The operation goes on, and so does the training."""
        lines = self.two("""
if comm.rank == 0:
    interrupted(lambda: comm.all_reduce(array.array("f", [1.0])))
    interrupted(comm.barrier)
    interrupted(buffer.broadcast)
    put()
    interrupted(buffer.sync)
    seen()
else:
    wait_until_seen()
    comm.all_reduce(array.array("f", [1.0]))
    comm.barrier()
    buffer.broadcast()
    put()
print(optimizer.step().step)
buffer.verify()
""")
        self.assertEqual(sorted(lines), ["1", "1"] + ["interrupted"] * 4)

    def test_calls_without_a_request(self):
        """Nobody could say how far these came: the others are told that this rank gave up."""
        for call in ("comm.split(0)", "buffer.verify()", "megadp.Optimizer(buffer)"):
            with self.subTest(call):
                lines = self.two(f"""
if comm.rank == 0:
    interrupted(lambda: {call})
    seen()
else:
    wait_until_seen()
    tell_news()
    try:
        {call}
    except megadp.MegaDPError as error:
        print(error.code.name, error.rank)
""")
                self.assertEqual(sorted(lines), ["ABORTED 0", "ABORTED 0", "interrupted"])

    def test_step(self):
        for sync in ("", "buffer.sync()"):
            for way in ("", "wait=False", "report=False", "report=False, wait=False"):
                if sync and way.endswith("wait=False"):
                    continue
                with self.subTest(sync=sync, way=way):
                    lines = self.two(f"""
put()
{sync}
if comm.rank == 0:
    interrupted(lambda: optimizer.step({way}))
    seen()
else:
    wait_until_seen()
    tell_news()
    try:
        optimizer.step()
    except megadp.MegaDPError as error:
        print(error.code.name, error.rank)
""")
                    self.assertEqual(sorted(lines), ["ABORTED 0", "ABORTED 0", "interrupted"])

    def test_waiting_for_parameters(self):
        """And the gather goes on."""
        lines = self.two("""
put()
buffer.sync()
if comm.rank == 0:
    optimizer.step(wait=False, report=False)
    interrupted(buffer.wait)
    interrupted(put)
    interrupted(lambda: buffer.read("w", array.array("f", [0, 0])))
    seen()
else:
    wait_until_seen()
    optimizer.step()
buffer.wait()
buffer.verify()
print("whole")
""")
        self.assertEqual(sorted(lines), ["interrupted"] * 3 + ["whole"] * 2)

    def test_handlers_run_meanwhile(self):
        """One that raises nothing ends nothing, and one that raises another exception ends the wait with that one; on the main thread, where
        Python runs them, while others wait inside the library as well."""
        lines = self.two("""
class Enough(Exception):
    pass
came = []
def handle(number, frame):
    came.append(threading.current_thread() is threading.main_thread())
    if len(came) == 20:
        raise Enough
signal.signal(signal.SIGUSR1, handle)
def send_signals():
    for number in range(20):
        time.sleep(0.03)
        os.kill(os.getpid(), signal.SIGUSR1)
        while len(came) <= number:
            time.sleep(0.01)
if comm.rank == 0:
    request = comm.barrier(wait=False)
    beside = threading.Thread(target=request.wait)
    beside.start()
    threading.Thread(target=send_signals).start()
    try:
        request.wait()
    except Enough:
        print(len(came), all(came))
    seen()
    beside.join()
else:
    wait_until_seen()
    comm.barrier()
comm.barrier()
print("whole")
""")
        self.assertEqual(sorted(lines), ["20 True", "whole", "whole"])

    def test_joining_by_a_bootstrap(self):
        source = self.SOURCE + """
def gather(mine):
    time.sleep(1000)
interrupted(lambda: megadp.Comm(bootstrap=gather, rank=0, size=2, timeout=1000))
"""
        ended = subprocess.run([sys.executable, "-c", source], env=support.environment(), text=True, timeout=support.PATIENCE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((ended.stdout, ended.returncode, ended.stderr), ("interrupted\n", 0, ""))

    def test_joined_too_late(self):
        """A Comm that comes when nobody waits for it any more: the other ranks took it for one that goes on."""
        source = self.SOURCE + """
from megadp import _comm, _waiting
real, let, destroyed = _comm.lib, threading.Event(), threading.Event()
class Late:
    def __getattr__(self, name):
        return getattr(real, name)
    def mdp_comm_create(self, *arguments):
        let.wait()
        return real.mdp_comm_create(*arguments)
    def mdp_comm_destroy(self, comm):
        real.mdp_comm_destroy(comm)
        destroyed.set()
_comm.lib, _waiting.GIVEN_UP = Late(), 0.1
interrupted(lambda: megadp.Comm(bootstrap=lambda mine: [mine], rank=0, size=1))
print(destroyed.is_set())
let.set()
print(destroyed.wait(60))
"""
        ended = subprocess.run([sys.executable, "-c", source], env=support.environment(), text=True, timeout=support.PATIENCE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((ended.stdout.split(), ended.returncode, ended.stderr), (["interrupted", "False", "True"], 0, ""))

    def test_joining(self):
        """The ranks that do not come are no longer waited for."""
        source = self.SOURCE + """
interrupted(lambda: megadp.Comm(megadp.unique_id(), 0, 2, timeout=1000))
"""
        ended = subprocess.run([sys.executable, "-c", source], env=support.environment(), text=True, timeout=support.PATIENCE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((ended.stdout, ended.returncode), ("interrupted\n", 0), ended.stderr)


class Pickled(unittest.TestCase):
    """What belongs to a process is not copied out of it, and says so itself."""

    def test_pickled_and_copied(self):
        with megadp.Comm() as comm:
            buffer = megadp.Buffer(comm, {"w": (3,)})
            things = (comm, buffer, megadp.Optimizer(buffer, lr=0.1), megadp.Grid(comm), comm.barrier(wait=False), buffer.param("w"))
            for thing in things:
                calls = {"pickled": pickle.dumps, "copied": copy.deepcopy}
                if thing is comm:  # a module that holds one can be copied
                    self.assertIs(calls.pop("copied")(comm), comm)
                for word, call in calls.items():
                    with self.subTest(thing=type(thing).__name__, word=word), self.assertRaises(megadp.InvalidError) as caught:
                        call(thing)
                    said = f"this {type(thing).__name__} belongs to this process and its rank, and cannot be {word}"
                    self.assertIn(said, str(caught.exception))
                self.assertIs(type(copy.copy(thing)), type(thing))
            self.assertEqual(copy.copy(buffer).param("w").shape, (3,))

    def test_copies(self):
        """By copy.copy: they were closed with what they had been made from."""
        comm = megadp.Comm()
        buffer = megadp.Buffer(comm, {"w": (3,)})
        things = [megadp.Optimizer(buffer, lr=0.1), megadp.Grid(comm), buffer, comm]
        del buffer, comm
        while things:
            thing = things.pop(0)
            same, handle = copy.copy(thing), thing._handle
            del thing
            gc.collect()
            self.assertFalse(same.closed)
            del same
            gc.collect()
            self.assertTrue(handle.closed)
        comm = megadp.Comm()
        request = copy.copy(comm.barrier(wait=False))
        gc.collect()
        self.assertTrue(request.wait(60))

    def test_interrupted_behind_the_count(self):
        """A signal's handler that raised when a call had been counted left its handle open for ever."""
        class Raising:
            def __enter__(self):
                return real.__enter__()

            def __exit__(self, *about):
                real.__exit__(*about)
                handle._lock = real
                raise KeyboardInterrupt

        comm = megadp.Comm()
        handle, real = comm._handle, comm._handle._lock
        handle._lock = Raising()
        with self.assertRaises(KeyboardInterrupt):
            comm.barrier()
        self.assertEqual(handle.calls, 0)
        comm.close()
        self.assertIsNone(handle.pointer)

    def test_half_made(self):
        """A Lease that pickle has begun to make had an exception that nobody could catch."""
        with unittest.mock.patch("sys.unraisablehook") as told:
            Lease.__new__(Lease)
            gc.collect()
        told.assert_not_called()

    def test_tensor_at_the_end(self):
        """One that a module holds is let go when modules are empty already."""
        source = """
            import os, megadp
            tensor = megadp.Buffer(megadp.Comm(), {"w": (4,)}).param("w")
            os.getpid = None  # which is what is left of modules then
        """
        ended = support.run_source(1, source)
        support.check_ended(self, ended)
        self.assertEqual(ended.stderr, "")


class Garbage(unittest.TestCase):
    def test_objects_are_collected(self):
        """In any order, without close: nothing is left, and no handle either."""
        comm = megadp.Comm()
        buffer = megadp.Buffer(megadp.Grid(comm), {"w": (2,)})
        optimizer = megadp.Optimizer(buffer)
        handles = [weakref.ref(made._handle) for made in (comm, buffer, optimizer)]
        view = buffer.param("w").memoryview
        del comm, buffer, optimizer
        gc.collect()
        self.assertEqual([handle() is None for handle in handles], [True, False, True])  # but what the view needs
        self.assertIsNotNone(handles[1]().pointer)
        del view
        gc.collect()
        self.assertEqual([handle() for handle in handles], [None] * 3)

    def test_close_waits_for_calls(self):
        """Closed by another thread while a call is inside: the handle dies after the call."""
        with tempfile.TemporaryDirectory() as folder:
            out = support.check_ended(self, support.run_source(2, f"""
                import os, threading, time, megadp
                comm, flag = megadp.Comm(), {os.path.join(folder, "closed")!r}
                if comm.rank == 0:
                    inside = threading.Thread(target=comm.split, args=(0,))
                    inside.start()
                    while comm._handle._calls == 0:
                        time.sleep(0.001)
                    comm.close()
                    assert comm._handle.pointer is not None
                    open(flag, "w").close()
                    inside.join()
                    assert comm._handle.pointer is None
                    print("closed", flush=True)
                else:
                    while not os.path.exists(flag):
                        time.sleep(0.001)
                    comm.split(0)
            """))
        self.assertEqual(out, "closed\n")

    def test_many_lives(self):
        """Nothing is left of a hundred communicators, not even a file descriptor."""
        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        def live():
            comm = megadp.Comm()
            buffer = megadp.Buffer(comm, {"w": (2,)})
            buffer.put("w", memoryview(bytes(8)).cast("f"))
            buffer.sync()
            megadp.Optimizer(buffer).step()

        live()
        gc.collect()
        before = descriptors()
        for _ in range(100):
            live()
        gc.collect()
        end = time.monotonic() + support.PATIENCE  # threads of the library close theirs a moment later
        while descriptors() > before and time.monotonic() < end:
            time.sleep(0.01)
        self.assertLessEqual(descriptors(), before)


if __name__ == "__main__":
    unittest.main()
