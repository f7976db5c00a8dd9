# SPDX-License-Identifier: Apache-2.0
"""Child processes are patched however they are started, and each logs one line."""

from __future__ import annotations

import json
import shutil

import pytest

from .conftest import PATCHED, FakeHosts, visible

CHILD = """
import logging, multiprocessing
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(process)d %(message)s")

def child(queue):
    bootstrap.register()
    bootstrap.register()
    sys.stdout.flush()
    queue.put([os.getpid(), state()])

def run(method):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    process.join()
    return queue.get()
"""


@pytest.mark.parametrize("activation", ["ascend_specpatch.arm", "bootstrap.register"])
@pytest.mark.parametrize("hosts_loaded", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_are_patched_and_log_one_line(
    fake_hosts: FakeHosts, method: str, hosts_loaded: bool, activation: str
) -> None:
    done = fake_hosts.run(
        CHILD
        + f"""
{activation}()
if __name__ == "__main__":
    if {hosts_loaded}:
        import vllm_ascend.worker
    sys.stdout.flush()
    print(json.dumps(run({method!r})))
"""
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    pid, state = json.loads(last)
    assert visible(state) == PATCHED
    said = [line.removeprefix(f"{pid} ") for line in lines if line.startswith(f"{pid} ")]
    assert len(said) == 1, lines
    assert said[0].startswith("ascend-specpatch ")
    assert "4 patches" in said[0]
    assert said[0].endswith("on vllm 0.16.0 + vllm-ascend 0.16.0rc1")


def test_a_forked_child_that_no_plugin_runs_in_logs_its_line_and_writes_its_file(
    fake_hosts: FakeHosts,
) -> None:
    """vLLM loads its plugins once a process, and a fork inherits that it has."""
    found = fake_hosts.result(
        """
        import logging, multiprocessing
        from ascend_specpatch import processes
        logging.basicConfig(level="INFO", stream=sys.stderr, format="%(process)d %(message)s")
        bootstrap.register()

        def child(queue):
            own = [process for process in processes.read_all()[0] if process.pid == os.getpid()]
            queue.put([os.getpid(), [process.report["digest"] for process in own]])

        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        process.join()
        left = [process.pid for process in processes.read_all()[0]]
        from ascend_specpatch import report
        print(json.dumps([queue.get(), left, os.getpid(), report.current().digest()]))
        """,
        TMPDIR=str(fake_hosts.folder),
    )
    (child, digests), left, parent, digest = found
    assert digests == [digest]
    assert parent in left
    assert child not in left, "the child's file outlived it"


def test_a_thread_that_holds_our_locks_at_a_fork_does_not_block_the_child(fake_hosts: FakeHosts) -> None:
    found = fake_hosts.result(
        """
        import threading
        from ascend_specpatch import hooks
        hooks.activate()
        held, done = threading.Event(), threading.Event()
        def hold():
            with hooks._lock, hooks._active._lock:
                held.set()
                done.wait(30)
        threading.Thread(target=hold).start()
        held.wait()
        child = os.fork()
        if child == 0:
            bootstrap.register()
            os._exit(0 if state()["worker"] else 1)
        print(json.dumps(os.waitpid(child, 0)[1]))
        done.set()
        """,
        PYTHONWARNINGS="ignore",  # newer Pythons warn of any fork beside threads
    )
    assert found == 0


def test_asking_whether_vllm_is_installed_activates_nothing(fake_hosts: FakeHosts) -> None:
    found = fake_hosts.result(
        """
        import importlib.util
        ascend_specpatch.arm()
        spec = importlib.util.find_spec("vllm")
        source = spec.loader.get_source("vllm")
        loaded = [name in sys.modules for name in ("ascend_specpatch.hooks", "importlib_metadata")]
        print(json.dumps([source, bootstrap.armed(), *loaded]))
        """
    )
    assert found == ["", True, False, False]


def test_a_host_loads_with_its_own_loader_and_no_trigger_stays_behind(fake_hosts: FakeHosts) -> None:
    found = fake_hosts.result(
        """
        ascend_specpatch.arm()
        import vllm
        loaders = vllm.__loader__, vllm.__spec__.loader
        behind = ascend_specpatch in sys.meta_path
        print(json.dumps([*(type(loader).__name__ for loader in loaders), behind]))
        """
    )
    assert found == ["SourceFileLoader", "SourceFileLoader", False]


def test_a_folder_that_only_has_the_name_of_a_host_activates_nothing(fake_hosts: FakeHosts) -> None:
    (fake_hosts.folder / "vllm" / "__init__.py").unlink()
    found = fake_hosts.result(
        """
        sys.path = [entry for entry in sys.path if "site-packages" not in entry]  # where vLLM may be as well
        ascend_specpatch.arm()
        import vllm
        print(json.dumps([vllm.__spec__.origin, bootstrap.armed()]))
        """
    )
    assert found == [None, True]


def test_hosts_in_a_zip_are_patched(fake_hosts: FakeHosts) -> None:
    archive = shutil.make_archive(str(fake_hosts.folder / "hosts"), "zip", fake_hosts.folder)
    for name in ("vllm", "vllm_ascend"):
        shutil.rmtree(fake_hosts.folder / name)
    state = fake_hosts.result(
        f"sys.path.insert(0, {archive!r}); ascend_specpatch.arm(); print(json.dumps(state()))"
    )
    assert visible(state) == PATCHED
