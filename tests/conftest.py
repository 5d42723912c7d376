"""What pytest needs to know, also where none of its plugins is installed."""

import os

import pytest

QUICK = "not slow and not sweep"  # as in pyproject.toml


def pytest_addoption(parser, pluginmanager):
    if not pluginmanager.hasplugin("timeout"):  # or `timeout` in pyproject.toml were an error
        parser.addini("timeout", "seconds a test may take; without pytest-timeout, any number")


def pytest_configure(config):
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): may take longer than the others")
    if config.option.markexpr == QUICK and all("::" in name for name in config.args):
        config.option.markexpr = ""  # who names a test wants it, slow or not


def pytest_sessionfinish(session):
    """With SAGE_GRPO_ALL=1 nothing may be skipped: a library that CI lost would take its tests with it, unseen."""
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if os.environ.get("SAGE_GRPO_ALL") == "1" and reporter and reporter.stats.get("skipped"):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        reporter.write_line("\nSAGE_GRPO_ALL=1, but tests were skipped: see above", red=True)
