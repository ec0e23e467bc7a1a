"""Tables whose rows come together: layers that look up the same ids, one after the other."""

from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.row_source import TableOptions
from fleetx.ps.wire.arrays import Floats


class Companions:
    """Knows which tables were asked for the ids of the same batch, and keeps rows that came early.

    Tables that were asked together in one forward probably are in the next one, so their rows come
    in one message. They are looked up without being made, which gives the same numbers: a forward
    that leaves a layer out has changed nothing.
    """

    def __init__(self) -> None:
        self._batch: IdBatch | None = None
        self._asked: list[TableOptions] = []
        """Those that were asked for the batch at hand, in their order."""
        self._known: dict[str, list[TableOptions]] = {}
        """Table -> those that were asked after it, for the same batch."""
        self._early: dict[str, Floats] = {}

    def forget(self) -> None:
        """Before another forward, and when rows have changed: what came early is old now."""
        self._early.clear()
        self._batch = None

    def early(self, table: TableOptions, batch: IdBatch) -> Floats | None:
        """The rows of a batch, if they have come; notes who asked."""
        if batch is not self._batch:
            if self._asked:
                self._known[self._asked[0].name] = self._asked[1:]
            self._batch, self._asked = batch, []
            self._early.clear()
        if table.name not in {each.name for each in self._asked}:
            self._asked.append(table)
        return self._early.pop(table.name, None)

    def of(self, table: TableOptions) -> list[TableOptions]:
        """Those whose rows shall come with those of a table."""
        first = len(self._asked) == 1
        known = self._known.get(table.name, []) if first else []
        # Rows on a disk come to memory when they are trained; short ones are rounded when made.
        return [each for each in known if each.storage == "memory" and each.dtype == "float32"]

    def keep(self, table: TableOptions, rows: Floats) -> None:
        """Rows have come before they were asked for."""
        self._early[table.name] = rows
