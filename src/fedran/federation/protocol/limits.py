"""Every number of a federation that is a judgement: waits, sizes and counts, each with its reason.

What an owner may want to choose is a setting of ``server.toml`` or ``site.toml``. What follows from
a format or from cryptography stands beside the code that needs it.
"""

from __future__ import annotations

# New heads
FALSE_ALARMS = 0.001  # of an honest round: all tests of all sites and classes together
ALIKE = 32  # points from which one knows an honest site as well as from all other sites
MAX_HEADS = 9  # that a site tests for one message: the head, and those without one site
TEST_SECONDS = 90.0  # until sites have tested heads: later counts are left out

# Rounds: a slow site costs a wait, a dead one must not cost the task
POLL_SECONDS = 1.0  # between two looks for answers: below what a person notices
CATCH_UP_SECONDS = 120.0  # for answers in a run without a task: another one follows
HAND_BACK_SECONDS = 90.0  # for nodes to take receipts and head: others catch up later
RETRY_SECONDS = 10.0  # until a node whose answer is an error is asked again
SLOW_SECONDS = 75.0  # until a silent node is asked again, then twice as long, ...
MAX_FAILURES = 5  # errors of a node after which a run does not ask it again
FIRST_PROGRESS = 5.0  # seconds until the first line about missing sites: most have answered
PROGRESS_SECONDS = 30.0  # between two such lines: a log that can still be read
MAX_ATTEMPTS = 3  # at one secure sum in a run: a later run may try again

# Sites
MESSAGE_BYTES = 16 * 2**20  # of envelopes in one message: the server asks for the rest
BATCH_ROWS = 512  # whose random features are made at a time where memory is short

# What a message may contain: far above any use, and small enough to be read without harm
MAX_BUDGET = 2**29  # bytes of an upload: SQLite has a limit of 10^9 per value
MAX_WIDTH = 2**17  # features, before and after the random map
MAX_CLASSES = 2000  # labels in an offer: a longer list is left out
MAX_COLUMNS = 10_000  # names of columns in an offer
MAX_SOURCE_FIELDS = 16  # texts that say what made the features
MAX_EARLIER = 100  # earlier tasks in an offer, for sites that were away
MAX_SETTLED = 5000  # uploads that a site names as arrived: the newest
MAX_SUMS = 1_000_000  # largest number of a secure sum of a task
MAX_ATTEMPT_NUMBER = 10**9  # largest number of an attempt at a sum
MAX_REVISION = 100  # times that a site replaces one upload: each costs a server 10 to 45 ms
MAX_ROWS = 10**9  # of a site, a class or a group
MAX_BLOBS = 256  # envelopes and other binary parts of a message
MAX_JSON = 2**20  # bytes of the text of a message, or of what an app of Flower says of itself
MAX_HEAD_BYTES = 64 * 2**20  # of the heads that sites test: fewer batches if they are large
ENVELOPE_BYTES = 1024  # room for statement and signature beside an upload: they need 600
ANSWER_BYTES = 2**16  # room beside the masked vector in a site's answer
LEAST_LIMIT = 64 * 2**20  # bytes of an envelope, unless the budget is higher

# Secure sums
MIN_SITES = 3  # of a sum: with two, each could subtract its own rows
MAX_SITES = 128  # of a sum: a site computes one mask per peer
MAX_CLIENTS = 1000  # of a pinned roster
MAX_NUMBERS = 2**26 - 2**18  # of a vector: 255 MiB, which fits the largest message

# The store of the server
BUSY_SECONDS = 60.0  # for another process that writes, such as a backup
LOCK_TIMEOUT = 600.0  # for another run, or for `accept`, to release the store
MAX_EVENTS = 100_000  # that are kept at all, because anyone can cause some
EVENT_SECONDS = 365 * 86400.0  # for which events are kept; uploads and heads stay
MAX_TEXT = 600  # characters of a text in an event: a sentence with its remedy
MAX_ITEMS = 1000  # of a list in an event, which then stays below one MiB

# Programs that run in the background
START_SECONDS = 120.0  # until Flower's SuperLink listens, on a slow disk too
START_SECONDS_PER_SITE = 8.0  # more per site of the machine: each is several processes
SETTLE_SECONDS = 5.0  # after which a SuperNode that the server does not admit has ended
LEFTOVER_SECONDS = 5.0  # for the SuperLink of a killed supervisor to end
HEALTHY_SECONDS = 30.0  # that a program ran: its next restart is quick again
MAX_RESTART_DELAY = 60.0  # between restarts: Flower refuses a crashed node for a minute
ASK_SECONDS = 3600.0  # between two runs that ask all sites what they have revised
ASK_AGAIN_UPDATES = 5  # until a node that took no head is asked again: every time is a run
MAX_RUNS = 4  # of a task in Flower until it counts as failed
EXTRA_SECONDS = 900.0  # beyond a task's deadline: to start, wait for a run, solve and send
ALARM_SECONDS = 60.0  # between two alarms, because every request can cause one
MAX_LOG_BYTES = 5 * 2**20  # of a log file: then it is renamed, and the older one deleted
MAX_TRIAL_SITES = 1000  # that `init` creates on one machine

# Certificates
AUTHORITY_DAYS = 3650  # sites need a new ca.crt after ten years
SERVER_DAYS = 825  # the longest that common TLS clients accept
WARN_DAYS = 30.0  # before an expiry from which on there are warnings

# What `check` warns of
MAX_SKEW = 60.0  # seconds between the clocks: Flower drops messages above it
LEAST_FREE = 2**30  # bytes of free disk below which there is a warning
FULL_DISK = 2**23  # ... and below which a disk is full: SQLite writes several times an upload
POOR_SHARE = 0.5  # of the accuracy by chance, above which a classifier is not called poor
SAMPLE_ROWS = 2000  # whose random features are computed: enough for an accuracy

# What `status` shows
LATE_SECONDS = 60.0  # by which a look at Flower's nodes may be late
SHOWN_ITEMS = 8  # problems, and sites of a sum, in a terminal
SHOWN_PROBLEMS = 200  # that are read from the database
SHOWN_HEADS = 200  # of the chart of accuracies
TABLE_CLASSES = 60  # rows of the table of classes on the page ...
TABLE_SITES = 40  # ... and its columns
