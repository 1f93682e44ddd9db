"""Training: parameters, loss graph, training steps on host and device, epoch loop.

Terms used in these modules:

- A *pass* computes the loss and gradients of one minibatch; an *update* then changes the parameters. A *step* is both.
- *Rows meet* if the result of one row depends on other rows of its minibatch, as with batch normalization in training.
  Padding rows would then change results, so such minibatches are not padded.
- The *share* of a row is its weight divided by the sum of the weights of its minibatch.
- A *table* (``RowGradients``) holds the gradient of a matrix of which a minibatch uses only some rows, such as an
  embedding.
"""
