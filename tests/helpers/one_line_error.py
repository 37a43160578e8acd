"""The form of an error on the command line."""


def refused(found, *words):
    """Exit code 2, nothing on stdout, one line on stderr."""
    code, out, err = found
    assert (code, out) == (2, "")
    assert err.startswith("fedran: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert "Errno" not in err
    for word in words:
        assert word in err
    return err
