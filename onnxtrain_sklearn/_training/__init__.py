"""Training: parameters, loss graph, training steps on host and device, epoch loop.

Terms used in these modules:

- A *pass* computes the loss and gradients of one minibatch; an *update* then changes the parameters. A *step* is both.
- *Rows meet* if the result of one row depends on other rows of its minibatch: :mod:`.rows_meet` explains it.
- The *normalized weight* of a row is its weight divided by the sum of the weights of its minibatch.
- A gradient is *row-sparse* (``RowSparseGradient``) if a minibatch uses only some rows of the matrix, such as an
  embedding: it is zero in all others.
"""
