"""``fleetx.dataset`` of FleetX 1."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {},
    modules=[
        *("bert_dataset", "ctr_data_generator", "image_dataset", "transformer_dataset"),
        *("word2vec_dataset", "word2vec_reader"),
    ],
)
