"""``import fedran`` and ``fedran --version`` are fast: other libraries are imported when needed."""

import subprocess
import sys

import pytest

import fedran


def run(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import fedran",
        "from fedran.cli.main import run; run(['--version'])",
        "from fedran.cli.main import run; run(['--help'])",
    ],
)
def test_no_numerical_library_is_imported(code):
    heavy = "('numpy', 'scipy', 'sklearn', 'pandas', 'torch', 'matplotlib')"
    report = f"import sys; print([n for n in {heavy} if n in sys.modules])"
    assert run(f"{code}\n{report}").splitlines()[-1] == "[]"


def test_only_the_estimator_needs_scikit_learn_and_imports_it_on_first_use():
    code = (
        "import sys, fedran, fedran.paper\n"
        "fedran.Aggregator, fedran.summarize, fedran.encode, fedran.plan\n"
        "print('numpy' in sys.modules, 'sklearn' in sys.modules)\n"
        "clf = fedran.FedRANClassifier(out_features=8)\n"
        "from fedran import FedRANClassifier\n"
        "print(type(clf) is FedRANClassifier, 'sklearn' in sys.modules)"
    )
    assert run(code) == "True False\nTrue True\n"


def test_every_public_name_is_listed_and_exists():
    assert set(dir(fedran)) == {*fedran.__all__, "__version__"}
    for name in fedran.__all__:
        assert getattr(fedran, name) is not None
    with pytest.raises(AttributeError, match="module 'fedran' has no attribute 'Classifier'"):
        fedran.Classifier  # noqa: B018
