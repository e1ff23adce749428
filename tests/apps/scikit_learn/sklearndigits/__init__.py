"""scikit-learn's logistic regression, trained on handwritten digits."""
