"""What every room may use: types, errors of other libraries translated to ours, the base class of components."""
