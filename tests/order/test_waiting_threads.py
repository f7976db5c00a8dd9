# SPDX-License-Identifier: Apache-2.0
"""Whoever imports a target gets it patched, also where another thread is about to patch it."""

from __future__ import annotations

from .conftest import FakeHosts


def test_an_import_returns_once_its_patches_are_applied(fake_hosts: FakeHosts) -> None:
    """The worker's thread, which looks for patches to apply, takes that of the proposer, as the thread that
    imports the proposer has said that it is loaded and has not come to apply anything."""
    fake_hosts.write(
        {
            "vllm_ascend/worker.py": "",
            "fake_patches/upstream.py": """
                import threading
                taken, go_on = threading.Event(), threading.Event()

                def apply(edit):
                    taken.set()
                    go_on.wait(0.5)
                    edit.set(edit.module, "helper", lambda: "ours")
                """,
        }
    )
    found = fake_hosts.result(
        """
        import threading
        from ascend_specpatch import hooks
        from fake_patches import upstream
        ascend_specpatch.arm()
        import vllm, vllm_ascend
        take_note = hooks.Activation._take_note
        noted = threading.Event()

        def and_let_the_other_thread_run(activation, target, module):
            take_note(activation, target, module)
            if target == "vllm.proposer":
                noted.set()
                upstream.taken.wait(0.5)

        hooks.Activation._take_note = and_let_the_other_thread_run

        def import_worker():
            noted.wait()
            import vllm_ascend.worker

        other = threading.Thread(target=import_worker)
        other.start()
        import vllm.proposer
        seen = vllm.proposer.helper()
        upstream.go_on.set()
        other.join()
        print(json.dumps([seen, vllm.proposer.helper()]))
        """
    )
    assert found == ["ours", "ours"]


def test_an_import_waits_for_a_requirement_that_another_thread_imports(fake_hosts: FakeHosts) -> None:
    proposer = (fake_hosts.folder / "vllm" / "proposer.py").read_text()
    fake_hosts.write(
        {
            "vllm/proposer.py": "import builtins\nbuiltins.loading.set()\nbuiltins.go_on.wait(3)\n"
            + proposer,
            "vllm_ascend/drafter.py": "class Drafter:\n    def who(self):\n        return 'ascend'\n",
        }
    )
    found = fake_hosts.result(
        """
        import builtins, threading
        builtins.loading, builtins.go_on = threading.Event(), threading.Event()
        ascend_specpatch.arm()
        import vllm, vllm_ascend
        other = threading.Thread(target=lambda: __import__("vllm.proposer"))
        other.start()
        loading.wait()
        threading.Timer(0.5, go_on.set).start()
        from vllm_ascend.drafter import Drafter
        print(json.dumps(Drafter().who()))
        other.join()
        """
    )
    assert found == "ours"
