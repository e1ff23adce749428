"""What a large local epsilon still prevents: bounds on reconstruction.

A mechanism is (alpha, p, f)-protected against reconstruction if no estimator, from anything that
may be released, comes within a loss of alpha of the target f with a posterior probability above p
(Definition of a reconstruction breach, Bhowmick et al., arXiv:1812.00984v2, section 2.2).

``posterior`` bounds what any prior belief can become,
``directions`` about directions under a diffuse prior,
``histograms`` about sets of words under a Zipf prior (text).
``confined`` is no bound, but an attack: on updates that lie in few known dimensions.
"""

from flwr_sdp.reconstruction.confined import confined_cosine, max_epsilon_confined
from flwr_sdp.reconstruction.directions import (
    breach_probability,
    log_breach_bound,
    max_epsilon_for,
    tolerance_for,
)
from flwr_sdp.reconstruction.histograms import (
    histogram_breach_probability,
    histogram_max_epsilon,
    log_histogram_bound,
    log_precision_bound,
    log_recall_bound,
    precision_bound,
    recall_bound,
    recommended_batch_size,
)
from flwr_sdp.reconstruction.posterior import log_posterior_bound, posterior_bound

__all__ = [
    "breach_probability",
    "confined_cosine",
    "histogram_breach_probability",
    "histogram_max_epsilon",
    "log_breach_bound",
    "log_histogram_bound",
    "log_posterior_bound",
    "log_precision_bound",
    "log_recall_bound",
    "max_epsilon_confined",
    "max_epsilon_for",
    "posterior_bound",
    "precision_bound",
    "recall_bound",
    "recommended_batch_size",
    "tolerance_for",
]
