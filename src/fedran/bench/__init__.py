"""Running methods on streams: runner, metrics, results, the demo."""
