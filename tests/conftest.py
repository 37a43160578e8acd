"""Settings for the whole suite."""

import os

# Before SciPy is imported: scikit-learn's checks then include its array API one.
os.environ.setdefault("SCIPY_ARRAY_API", "1")
