"""``paddle.linalg``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.tensor.linalg": (
            "cholesky cholesky_solve cond corrcoef cov det eig eigh eigvals eigvalsh "
            "householder_product inv lstsq matrix_power matrix_rank multi_dot norm pinv qr slogdet "
            "solve svd triangular_solve"
        )
    },
)
