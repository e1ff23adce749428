"""The marks by which a server knows a private reply: settings of the mechanism, not data."""

EPSILON_DIRECTION = "ldp-epsilon-direction"
EPSILON_MAGNITUDE = "ldp-epsilon-magnitude"
MAX_NORM = "ldp-max-norm"
MAX_OUTPUT_NORM = "ldp-max-output-norm"

INSECURE_GENERATOR = "ldp-insecure-generator"
"""Only there where the noise is not from the secure generator, as in tests and simulations."""

MARKS = (EPSILON_DIRECTION, EPSILON_MAGNITUDE, MAX_NORM, MAX_OUTPUT_NORM)
"""In every private reply."""

LEGACY_METRICS = "fitres.metrics"
"""The record that has them in the reply of a legacy client, a ConfigRecord."""

WEIGHTS = ("num-examples", "num_examples")
"""What the number of examples is called, in the message API and by a legacy client; always 1."""
