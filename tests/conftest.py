"""What pytest needs to know, also where none of its plugins is installed."""

import os
import re

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is imported; asking in vain takes seconds each
QUICK = "not slow and not sweep"  # as in pyproject.toml
ALL_SLOW = re.compile(r"^pytestmark = pytest\.mark\.slow$", re.MULTILINE)


def pytest_addoption(parser, pluginmanager):
    if not pluginmanager.hasplugin("timeout"):  # or `timeout` in pyproject.toml were an error
        parser.addini("timeout", "seconds a test may take; without pytest-timeout, any number")


def pytest_configure(config):
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): may take longer than the others")
    if config.option.markexpr == QUICK and all("::" in name for name in config.args):
        config.option.markexpr = ""  # who names a test wants it, slow or not


def pytest_ignore_collect(collection_path, config):
    """A file whose tests are all slow is not even imported for the quick ones: model libraries take half a minute."""
    if config.option.markexpr == QUICK and collection_path.suffix == ".py":
        return bool(ALL_SLOW.search(collection_path.read_text())) or None
    return None


def pytest_sessionfinish(session):
    """With SAGE_GRPO_ALL=1 nothing may be skipped: a library that CI lost would take its tests with it, unseen."""
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if os.environ.get("SAGE_GRPO_ALL") == "1" and reporter and reporter.stats.get("skipped"):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        reporter.write_line("\nSAGE_GRPO_ALL=1, but tests were skipped: see above", red=True)
