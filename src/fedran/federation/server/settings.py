"""The server's configuration, ``server.toml``, and the files in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fedran.core.errors import check_id
from fedran.core.features import RandomFeatures
from fedran.core.labels import Label, canonical, ordered
from fedran.core.prepare import KernelFeatures, UnitKind
from fedran.core.private.sketch_sums import section_sizes, sketch_width
from fedran.data.rows import LABEL
from fedran.federation.protocol.configuration import is_address, is_id, load_settings
from fedran.federation.protocol.limits import (
    ANSWER_BYTES,
    ENVELOPE_BYTES,
    LEAST_LIMIT,
    MAX_BUDGET,
    MAX_CLASSES,
    MAX_GROUP_SIZE,
    MAX_NUMBERS,
    MAX_ROWS,
    MAX_SITES,
    MAX_WIDTH,
)
from fedran.federation.protocol.messages import (
    OF_POINTS,
    OF_SUMS,
    Offer,
    Privacy,
    check_columns,
    check_source,
)
from fedran.federation.protocol.ranges import check_ranges
from fedran.federation.secure.masking.attempt import helpers
from fedran.federation.secure.masking.contribution import Noise
from fedran.settings import Settings, between
from fedran.wire.validation import DEFAULT_LIMITS, Limits

WITHOUT_KEYS = "FEDRAN_NODES_WITHOUT_KEYS"
"""Environment variable of the server app: "1" if nodes have no keys (a simulation).
Otherwise a node may only answer for the client whose key it has."""
OWNER, REFUSED_REQUESTS = "owner.json", "refused.json"
"""Files in ``ServerPaths.runtime``: address and secret of Flower's interface for the owner, and how
many requests without the secret were refused."""
APP = "app.fab"
"""File in ``ServerPaths.flower``: our app as Flower packs it. It contains no code."""
ROSTER, STATE = "roster.toml", "state"
"""File with the sites that may send, and folder of the store, in the server's folder."""


@dataclass(frozen=True)
class ServerSettings(Settings):
    """The settings of a server."""

    federation: Annotated[str, is_id]
    """Id of the federation. It is part of every signature."""
    in_features: Annotated[int, between(1, MAX_WIDTH)]
    """Columns of the sites' features."""
    kind: UnitKind = "cosine"
    """How rows are prepared: `hellinger` for features that are never negative, `cosine` for
    features of any sign. With `hellinger`, a site with a negative value is refused."""
    source: str | dict[str, Any] = ""
    """What makes the features: a text, or a table of texts such as `backbone`, `weights` and
    `preprocessing`. It is part of the fingerprint, so it must be the same at all sites."""
    columns: list[str] | None = None
    """Names of the columns of features, in their order. A site puts the columns of a table in this
    order, and refuses a table in which one is missing or unknown. The list is part of the
    fingerprint. Without it, every site must have its columns in the same order."""
    ranges: dict[str, Any] | None = None
    """The usual values of columns, as `{age = [0, 120], "*" = [0, 16]}`; `*` stands for all columns
    that are not named. A site warns its own people, in `check` and in its log, of rows that do not
    fit. `init --features` proposes them."""
    group_size: Annotated[int, between(1, MAX_GROUP_SIZE)] = 5
    """About how many rows a group has. Sites make larger groups where the budget demands it."""
    min_group: Annotated[int, between(1, MAX_ROWS)] = 5
    """The fewest rows of a group. A site withholds classes with fewer rows, and an upload with a
    smaller group is refused. With 1 (and group_size = 1), every row leaves its site, rounded. The
    `min_class_count` of a site raises it."""
    landmarks: Annotated[int, between(1, 2**15)] = 4096
    """Size of a head of points: on how many means of points it rests. Fewer where features are so
    wide that sites could not read the head."""
    class_weight: Literal["balanced"] | None = None
    """With privacy = "none": `balanced` lets all classes count alike in the solve, however few
    rows one has. Without it, all rows count alike."""
    out_features: Annotated[int, between(1, MAX_WIDTH)] = 8192
    """In secure sums: random features M."""
    seed: Annotated[int, between(0, 2**32 - 1)] = 0
    """In secure sums: seed of the random features."""
    budget_bytes: Annotated[int, between(1024, MAX_BUDGET)] = 1_500_000
    """Limit on the bytes of a site's upload. The groups of its points become larger until it
    fits."""
    min_clients: Annotated[int, between(1, 10**6)] = 1
    """A task with fewer uploads at its deadline ends as `short`."""
    deadline: Annotated[float, between(1, 365 * 86400)] = 3600.0
    """Seconds that a task waits for sites of the roster, connected or not.
    `fedran federation task --deadline` counts instead."""
    validation: str | None = None
    """A file with features and labels, as of a site's task, on which every new head is tested."""
    label_column: str = LABEL
    """The column of labels, if `validation` is a CSV or Parquet file."""
    site_validation: bool = True
    """Without `validation`: whether sites test every new head on rows that they held out, and
    report counts per class."""
    address: Annotated[str, is_address] = "127.0.0.1:9443"
    """Where the SuperLink listens."""
    catch_up: Annotated[float, between(0, 86400)] = 60.0
    """Seconds between two checks for new keys and for sites that lack the newest head. With 0,
    only keys are checked, once per hour."""
    classes: list[str | int] | None = None
    """The labels that may occur. Sites get this list with every task, and an upload with another
    label is refused. Without it, any label is accepted."""
    row_multiple: Annotated[float, between(1, 10**6)] = 5.0
    """A site with more rows than this multiple of the other sites' median counts only in classes
    for which another site can vouch, unless the owner vouches for it."""
    trusted: bool = False
    """Whether a class counts that one site alone has sent. Otherwise it waits for a second site,
    unless it is in `classes`, or the owner vouches for the site with `fedran federation accept`."""
    privacy: Privacy = "none"
    """What sites send. `none`: points, which are means of groups of rows. `secure`: the server
    learns the sum over at least `min_sites` sites, and nothing about one site. Needs `classes`. See
    the how-to about secure sums. `dp`: the sum has noise too, so that it is differentially private
    for every row. Needs `epsilon`. See the how-to about differential privacy."""
    min_sites: Annotated[int, between(2, MAX_SITES)] = 3
    """The fewest sites of a secure sum. Sites have a limit of their own too."""
    sketch: Annotated[int, between(0, MAX_WIDTH)] = 512
    """Columns of the sketch of the Gram matrix in a secure sum: more are more accurate and larger.
    0, or at least half of `out_features`: the Gram matrix itself, which is exact. With
    privacy = "dp", rows are measured from the mean of the rows released before, which needs less
    noise."""
    max_rows: Annotated[int, between(1, MAX_ROWS)] = 10_000
    """The most rows of one site per task in a secure sum. Numbers are rounded to a resolution that
    follows from it. A site with more rows sends nothing. With privacy = "dp" it does not refuse,
    because that would reveal its number of rows, but the sum may become useless."""
    epsilon: Annotated[float | None, between(0.001, 1000)] = None
    """With privacy = "dp": the epsilon of every row. A row must be in one task only."""
    delta: Annotated[float, between(1e-15, 0.01)] = 1e-5
    """With privacy = "dp": the delta of every row, less than 1 / (number of rows)."""
    honest_sites: Annotated[int | None, between(1, MAX_SITES)] = None
    """With privacy = "dp": sites on whose noise the guarantee counts. The others of a sum may work
    with the server. At most `min_sites` - 1, because a site knows its own noise. Without it, a
    third of `min_sites`, at least one, is not counted on: 2 of 3, 4 of 5, 7 of 10."""
    total_epsilon: Annotated[float | None, between(0.001, 1000)] = None
    """With privacy = "dp": the budget of a person with one row in every task. A task that would
    exceed it is refused. Without it, nothing limits what a person spends over tasks."""
    exchange_seconds: Annotated[float, between(1, 86400)] = 120.0
    """Seconds that each exchange of a secure sum waits for a site, after the first one, which waits
    for `deadline`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_source(self.source)
        check_columns(self.columns or (), self.in_features)
        check_ranges(self.ranges or {})
        if self.classes is not None:
            if len(self.classes) != len(set(self.classes)) or not self.classes:
                raise ValueError(f"classes must list each label once, got {self.classes}")
            for label in self.classes:
                canonical(label)
        if self.privacy != "none" and self.class_weight is not None:
            raise ValueError('class_weight needs privacy = "none": sums do not hold single rows')
        self._check_privacy()

    def _check_privacy(self) -> None:
        """Secure sums need a list of classes, and room for a vector of fixed length.

        With noise, a budget must be stated, and features are taken without a projection.
        """
        for name in ("epsilon", "total_epsilon", "honest_sites"):
            if self.privacy != "dp" and getattr(self, name) is not None:
                raise ValueError(
                    f'{name} is for privacy = "dp", and privacy = "{self.privacy}" adds no noise; '
                    f'set privacy = "dp", or leave {name} out'
                )
        if self.privacy == "none":
            return
        if self.classes is None or len(self.classes) > MAX_CLASSES:
            raise ValueError(
                f'privacy = "{self.privacy}" needs `classes`, a list of 1 to {MAX_CLASSES} labels, '
                "because all sites must add vectors of the same form"
            )
        if self._sum_length > MAX_NUMBERS:
            raise ValueError(
                f"a secure sum has at most {MAX_NUMBERS:,} numbers, got {self._sum_length:,}; a "
                "smaller `sketch` needs fewer"
            )
        if self.privacy == "secure":
            return
        if self.epsilon is None:
            raise ValueError('privacy = "dp" needs `epsilon`, the budget of every row')
        if self.out_features != self.in_features:
            raise ValueError(
                'privacy = "dp" uses the features without a projection, because noise grows with '
                f"the width: set out_features = {self.in_features}, got {self.out_features}"
            )
        if (self.honest_sites or 1) >= self.min_sites:
            raise ValueError(
                f"honest_sites must be below min_sites = {self.min_sites}, because a site of a sum "
                f"knows its own noise, got {self.honest_sites}"
            )

    @property
    def noise(self) -> Noise | None:
        """The noise of every sum; None: there is none."""
        if self.privacy != "dp":
            return None
        assert self.epsilon is not None
        honest = self.honest_sites or self.min_sites - helpers(self.min_sites)
        return Noise(self.epsilon, self.delta, honest)

    @property
    def sketch_columns(self) -> int:
        """Columns of the sketch; 0 for the Gram matrix itself."""
        return sketch_width(self.sketch, self.out_features) or 0

    @property
    def labels(self) -> tuple[Label, ...] | None:
        """The labels that may occur, in canonical order; None: any."""
        return None if self.classes is None else ordered(self.classes)

    @property
    def limits(self) -> Limits:
        """The largest envelope that is parsed."""
        return Limits(message=self.largest_upload)

    @property
    def largest_upload(self) -> int:
        """Limit on the bytes of one envelope. A larger one is refused before it is parsed."""
        answer = 0 if self.privacy == "none" else 4 * self._sum_length + ANSWER_BYTES
        return max(LEAST_LIMIT, self.budget_bytes + ENVELOPE_BYTES, answer)

    @property
    def _sum_length(self) -> int:
        """Numbers of a site's vector in a secure sum without noise, which needs fewer."""
        sketch = self.sketch_columns or None
        return sum(section_sizes(len(self.classes or ()), self.out_features, sketch))

    def features(self) -> KernelFeatures | RandomFeatures:
        """The feature map that every offer describes."""
        return self.offer("any").features()

    @property
    def support(self) -> int:
        """Landmarks of a head of points that sites can read."""
        return min(self.landmarks, DEFAULT_LIMITS.decoded // (32 * self.in_features))

    def offer(self, task: str, earlier: Sequence[str] = ()) -> Offer:
        """The offer of a task, with the earlier tasks that a site may have missed."""
        needed = OF_POINTS if self.privacy == "none" else OF_SUMS
        return Offer(
            self.federation,
            check_id(task, "task"),
            self.in_features,
            self.kind,
            self.source,
            self.budget_bytes,
            earlier=tuple(earlier),
            classes=self.labels if self.labels and len(self.labels) <= MAX_CLASSES else (),
            privacy=self.privacy,
            columns=tuple(self.columns or ()),
            ranges=check_ranges(self.ranges or {}),
            **{name: getattr(self, name) for name in needed},
        )


@dataclass(frozen=True)
class ServerPaths:
    """The folder of a server, which holds ``server.toml``."""

    folder: Path
    flower_name: str = "flower"

    @classmethod
    def find(cls, folder: str | Path) -> ServerPaths:
        """The server's folder: the given one, or ``server`` below it."""
        given = Path(folder).absolute()
        for paths in (cls(given), cls(given / "server")):
            if paths.settings_file.is_file():
                return paths
        if (given / "site.toml").is_file():
            raise FileNotFoundError(
                f"{folder}: this is a site's folder, expected a server's; what the site does is in "
                "its log/fedran.log"
            )
        raise FileNotFoundError(
            f"{folder}: no server.toml here or in server/; `fedran federation init` makes one"
        )

    @property
    def settings_file(self) -> Path:
        """The server's configuration."""
        return self.folder / "server.toml"

    def settings(self) -> ServerSettings:
        """The settings in the configuration."""
        return load_settings(ServerSettings, self.settings_file)

    @property
    def roster(self) -> Path:
        """The file with the sites that may send."""
        return self.folder / ROSTER

    @property
    def nodes(self) -> Path:
        """The folder with public keys of nodes that may connect, ``CLIENT.pub``."""
        return self.folder / "nodes"

    @property
    def tls(self) -> Path:
        """The folder with certificates and their keys."""
        return self.folder / "tls"

    @property
    def state(self) -> Path:
        """The folder of the store: the database and the newest head."""
        return self.folder / STATE

    @property
    def runtime(self) -> Path:
        """The folder of the secrets by which the SuperLink knows the owner and the server's app."""
        return self.flower / "runtime"

    @property
    def flower(self) -> Path:
        """The folder of Flower's own files: its database and our thin app."""
        return self.folder / self.flower_name
