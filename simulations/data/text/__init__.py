"""Text of users: from its sources to the sentences that a language model is trained on."""
