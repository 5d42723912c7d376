"""What pytest needs to know, also where none of its plugins is installed."""

import os
import re
import signal

import pytest

import affected
import durations
import shared_plans
from forks import popen
from forks.session import Session

# Both are read when a library is imported. To ask the hub in vain takes seconds each time; a thread for each core in
# each of several processes takes longer than one.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
QUICK = "not slow and not sweep"  # as in pyproject.toml
ALL_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_addoption(parser, pluginmanager):
    if not pluginmanager.hasplugin("timeout"):  # or `timeout` in pyproject.toml were an error
        parser.addini("timeout", "seconds a test may take; without pytest-timeout, any number")
    parser.addoption("--affected", metavar="BASE", help="only files that the difference from this branch can affect")


def pytest_configure(config):
    for number in (signal.SIGINT, signal.SIGHUP):  # in the background or under nohup all processes ignore them
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): may take longer than the others")
    if config.option.markexpr == QUICK and all("::" in name for name in config.args):
        config.option.markexpr = ""  # who names a test wants it, slow or not
    wanted = config.option.markexpr != QUICK and not config.option.collectonly
    if wanted and os.environ.get("SAGE_GRPO_FORKS") != "0" and "PYTEST_XDIST_WORKER" not in os.environ:
        session = Session()
        config.add_cleanup(session.end)
    config.affected = config.option.affected and affected.Graph().tests(affected.changed(config.option.affected))
    if durations.VARIABLE in os.environ:
        config.pluginmanager.register(durations.Durations(os.environ[durations.VARIABLE]))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """Processes that a test starts are forks of one that has imported the libraries, unless it asks for real ones."""
    real = item.get_closest_marker("real_start")
    (popen.uninstall if real else popen.install)()
    shared_plans.install()
    yield
    popen.uninstall()


def pytest_ignore_collect(collection_path, config):
    """A file whose tests are all slow is not even imported for the quick ones: model libraries take half a minute."""
    if collection_path.suffix != ".py":
        return None
    if config.affected is not None and collection_path.name.startswith("test_"):
        return collection_path not in config.affected or None
    if config.option.markexpr == QUICK:
        return bool(ALL_SLOW.search(collection_path.read_text())) or None
    return None


def pytest_sessionfinish(session):
    """With SAGE_GRPO_ALL=1 nothing may be skipped: a library that CI lost would take its tests with it, unseen."""
    if session.config.option.affected and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK  # a change that affects no test is fine
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if os.environ.get("SAGE_GRPO_ALL") == "1" and reporter and reporter.stats.get("skipped"):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        reporter.write_line("\nSAGE_GRPO_ALL=1, but tests were skipped: see above", red=True)
