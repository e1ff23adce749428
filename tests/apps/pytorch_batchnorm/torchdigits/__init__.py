"""A convolutional network with batch normalisation, trained on handwritten digits."""
