"""Runs the checks of a client, and says for each how it went: what `cargo xtask clients` reads."""

import sys
import traceback


def not_in_tests(check):
    """A check that `--short` leaves out, as the project's tests do: it takes long, or is known to fail."""
    check.not_in_tests = True
    return check


def run(*checks):
    """Runs functions in this order; each is a check that passes if it returns."""
    failed = False
    short = "--short" in sys.argv[1:]
    for check in checks:
        if short and hasattr(check, "not_in_tests"):
            continue
        name = check.__doc__
        print(f"check {name}", flush=True)
        try:
            check()
        except BaseException as error:
            failed = True
            traceback.print_exc()
            lines = f"{type(error).__name__}: {error}".strip().splitlines()
            print(f"failed {lines[0][:200]}", flush=True)
        else:
            print("passed", flush=True)
    sys.exit(failed)


def close(got, expected, tolerance=1e-5):
    """Fails unless the arrays have one shape and differ by so little."""
    import numpy

    numpy.testing.assert_allclose(numpy.asarray(got), numpy.asarray(expected), rtol=tolerance, atol=tolerance)
