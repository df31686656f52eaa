"""Forked programs behave like new processes."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fork_server import ROOT, ForkServer
from tests.polling import eventually

PROGRAMS = {
    "code": (
        "-c",
        "import sys; print(sys.argv, __name__); print('talk', file=sys.stderr); sys.exit(3)",
        "a",
        "b c",
    ),
    "module": ("-m", "json.tool", "--no-ensure-ascii", "missing.json"),
    "fails": ("-c", "raise SystemExit('one line')"),
    "killed": ("-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
    "leaves at exit": ("-c", "import atexit; atexit.register(print, 'at exit'); print('first')"),
    "thread": ("-c", "import threading; threading.Timer(0.1, print, ['late']).start()"),
    "input": ("-c", "import sys; print(repr(sys.stdin.read()), sys.stdout.isatty())"),
    "place": (
        "-c",
        "import os; print(os.getcwd(), sorted(os.environ), os.getsid(0) == os.getpid())",
    ),
    "signals": (
        "-c",
        (
            "import signal as s; print([s.getsignal(n) for n in (1, 2, 15, 17)], "
            "s.pthread_sigmask(0, "
            "[]))"
        ),
    ),
}


@pytest.fixture(scope="module")
def nursery():
    return ForkServer("json")


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_forked_program_has_output_and_exit_code_of_a_new_process(nursery, tmp_path, name):
    env = {"GIVEN": "1", "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}
    forked = nursery.run(PROGRAMS[name], env, cwd=tmp_path)
    new = subprocess.run(
        [sys.executable, *PROGRAMS[name]],
        env=env,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )

    assert (forked.returncode, forked.stdout, forked.stderr) == (
        new.returncode,
        new.stdout,
        new.stderr,
    )


def test_nursery_serves_several_threads_at_once():
    started = ForkServer("json.tool")
    with ThreadPoolExecutor(8) as pool:
        completed = list(
            pool.map(lambda number: started.run(["-c", f"print({number})"], {}), range(8))
        )

    assert [each.stdout for each in completed] == [f"{number}\n" for number in range(8)]


def test_forked_script_imports_modules_of_its_folder(nursery, tmp_path):
    (tmp_path / "sibling.py").write_text("value = 7")
    (tmp_path / "script.py").write_text(
        "import sys, sibling; print(sibling.value, sys.argv[1:], __file__)"
    )
    completed = nursery.run([str(tmp_path / "script.py"), "x"], {"PATH": ""})

    assert (completed.stdout, completed.stderr) == (f"7 ['x'] {tmp_path}/script.py\n", "")


def test_forked_programs_share_imports_but_not_changes(nursery):
    change = nursery.run(
        ["-c", "import json; json.changed = True; print('json' in __import__('sys').modules)"], {}
    )
    later = nursery.run(["-c", "import json; print(hasattr(json, 'changed'))"], {})

    assert (change.stdout, later.stdout) == ("True\n", "False\n")


def test_forked_program_imports_modules_of_its_environment(nursery, tmp_path):
    (tmp_path / "found_there.py").write_text("")
    completed = nursery.run(["-c", "import found_there"], {"PYTHONPATH": str(tmp_path)})

    assert completed.returncode == 0, completed.stderr


def test_forked_program_loads_libraries_of_its_environment(nursery, tmp_path):
    source, library = tmp_path / "answer.c", tmp_path / "libanswer.so"
    source.write_text("int answer(void) { return 42; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    program = ["-c", "import ctypes; print(ctypes.CDLL('libanswer.so').answer())"]
    completed = [
        nursery.run(program, {"LD_LIBRARY_PATH": str(path)})
        for path in (tmp_path, tmp_path / "empty")
    ]

    assert [each.returncode for each in completed] == [0, 1], completed[0].stderr
    assert completed[0].stdout == "42\n"


def test_forked_program_is_killed_after_timeout(nursery, tmp_path):
    stubborn = (
        "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(os.getpid()); signal.pause()"
    )
    program = [
        "-c",
        f"import sys; sys.stdout = open({str(tmp_path / 'pid')!r}, 'w', buffering=1); {stubborn}",
    ]
    with pytest.raises(subprocess.TimeoutExpired):
        nursery.run(program, {}, timeout_s=1)

    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_fork_servers_with_equal_modules_are_one_process(nursery):
    parents = {
        each.run(["-c", "import os; print(os.getppid())"], {}).stdout
        for each in (nursery, ForkServer("json"))
    }

    assert len(parents) == 1


def test_fork_server_ends_with_its_owner(tmp_path):
    """The owner is the process that runs pytest."""
    program = "import os; print(os.getppid())"
    owner = (
        "from tests.fork_server import ForkServer; print(ForkServer('json').run(['-c', "
        f"{program!r}], {{}}).stdout)"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    completed = subprocess.run(
        [sys.executable, "-c", owner], env=env, cwd=ROOT, capture_output=True, check=True
    )

    eventually(lambda: not Path(f"/proc/{int(completed.stdout)}").exists())


def test_forked_program_with_an_open_file_warns_as_a_new_process_does(nursery, tmp_path):
    program = [
        "-c",
        (
            "import sys, warnings; warnings.simplefilter('always'); x = [open('/dev/null')]; "
            "x.append(x)"
        ),
    ]
    completed = nursery.run(program, {})

    assert "ResourceWarning: unclosed file" in completed.stderr
