//! One attention over several GPUs: how it is shared, and how the GPUs agree.

use qkvault_graph::entries;
use qkvault_graph::registry::Entry;

entries![
    pub;
    SHARD_RANKS = Entry {
        code: "shard.ranks",
        cause: "The number of ranks is 0 or too large.",
        field: "sharding.ranks",
        needed: "1 to 64 ranks",
        fix: "give the number of GPUs that share one attention; share the batch or the model among more of them",
        ..Entry::description()
    },
    SHARD_SEQUENCE = Entry {
        code: "shard.sequence",
        cause: "A length does not divide by the number of parts that the ranks share.",
        fix: "pad the sequences to that length, with per-sequence lengths if the padding must not be seen",
        ..Entry::description()
    },
    SHARD_HEADS = Entry {
        code: "shard.heads",
        cause: "The heads cannot be shared among the ranks, or among the groups of a gather.",
        field: "sharding.scheme",
        fix: "use the scheme gather with one group, which shares the sequence and leaves heads together",
        ..Entry::description()
    },
    SHARD_RUN = Entry {
        code: "shard.run",
        cause: "The keys of a cache are dealt to the ranks in runs of no or of partial pages.",
        field: "sharding.scheme",
        fix: "give a run of whole pages, or of 1 key or more for a dense cache",
        ..Entry::description()
    },
    SHARD_PASS = Entry {
        code: "shard.pass",
        cause: "A decode over sharded keys has a backward.",
        field: "pass",
        needed: "a forward: a cache has no gradients",
        fix: "use the scheme gather for training",
        ..Entry::description()
    },
    SHARD_EXPRESSION = Entry {
        code: "shard.expression",
        cause: "An expression cannot be written for a part of the scores.",
        fix: "rename operands that begin with `part_`, or shorten the expression",
        ..Entry::description()
    },
    SHARD_INDEX = Entry {
        code: "shard.index",
        cause: "Positions of the whole sequence are not exact as floats.",
        needed: "at most 16,777,216 queries and keys: float32 counts no further",
        fix: "shorten the sequence",
        ..Entry::description()
    },
    SHARD_ORIGINS = Entry {
        code: "shard.origins",
        cause: "An attention that is shared begins at positions of a launch itself.",
        field: "origins",
        needed: "an attention without origins: the schedule says where each part begins",
        fix: "describe the whole sequence",
        ..Entry::description()
    },
    SHARD_LENGTHS = Entry {
        code: "shard.lengths",
        cause: "A band cannot be moved to a part of sequences whose lengths a launch gets.",
        field: "mask.band",
        needed: "a band that ends at the diagonal (right = 0); for the scheme ring, one from the top left or packed \
                 documents, of which any band moves",
        fix: "use fixed lengths, or the scheme heads, which leaves sequences whole",
        source: "the lengths of a part follow from those of the whole only for such bands",
        ..Entry::not_built()
    },
    SHARD_STORAGE = Entry {
        code: "shard.storage",
        cause: "Operands of this storage are not shared by this scheme.",
        needed: "dense or varlen queries, keys and values, all alike, and no tensor by position beside packed \
                 documents (but for heads); a dense or paged cache for decode",
        fix: "use the scheme heads for packed documents with such tensors, and decode for pages",
        source: "the schedules of qkvault-parallel",
        ..Entry::not_built()
    },
    SHARD_DROPOUT = Entry {
        code: "shard.dropout",
        cause: "The mask of cuDNN's Philox depends on the shape of a launch, and decode draws none.",
        field: "dropout.source",
        needed: "DropoutSource::Places or ::Mask with gather, heads or ring",
        fix: "use DropoutSource::Places in both directions",
        source: "cuDNN documents no assignment of random numbers to elements",
        ..Entry::not_built()
    },
    SHARD_BLOCK_MASK = Entry {
        code: "shard.block-mask",
        cause: "A block mask is not shared among ranks.",
        field: "block_mask",
        needed: "an attention without a block mask",
        fix: "write the mask as a band or an expression",
        source: "the schedules of qkvault-parallel",
        ..Entry::not_built()
    },
    SHARD_DRAFT_TREE = Entry {
        code: "shard.draft-tree",
        cause: "A tree of drafts is about the last keys of a sequence, which one rank has.",
        field: "draft_tree",
        needed: "an attention without a tree of drafts",
        fix: "share heads among ranks by yourself: each has an attention of its own",
        source: "the schedules of qkvault-parallel",
        ..Entry::not_built()
    },
    SHARD_FP8 = Entry {
        code: "shard.fp8",
        cause: "8-bit attention is not shared among ranks.",
        field: "fp8",
        needed: "16-bit operands",
        fix: "use bf16 or f16",
        source: "the schedules of qkvault-parallel",
        ..Entry::not_built()
    },
    SHARD_OUTPUTS = Entry {
        code: "shard.outputs",
        cause: "Max and Sum_exp of parts of the keys are not merged.",
        field: "outputs",
        needed: "O and Stats alone, or a scheme that computes each row at once: gather or heads",
        fix: "use Stats, from which the sum follows",
        source: "the schedules of qkvault-parallel",
        ..Entry::not_built()
    },
    SHARD_TENSOR_GRADIENT = Entry {
        code: "shard.tensor-gradient",
        cause: "The gradient of a tensor is a sum over launches.",
        needed: "a tensor with an extent for queries, and one for keys in ring, and one for heads if they are shared",
        fix: "give the tensor its full extents, or use the scheme gather with one group",
        source: "the schedules of qkvault-parallel",
        ..Entry::not_built()
    },
    SHARD_SINK = Entry {
        code: "shard.sink",
        cause: "A row with a sink is in no launch, or a row is in several that would each count the sink.",
        field: "sink",
        needed: "a mask that shows each query a key of its own part; of packed documents any band does",
        fix: "use the scheme heads, or a band that keeps the diagonal",
        source: "the schedules of qkvault-parallel",
        ..Entry::not_built()
    },
    RANKS_SIZE = Entry {
        code: "ranks.size",
        cause: "The communicator has another number of ranks than the schedule, or a message another size.",
        fix: "make the communicator for the ranks of the sharding, and one schedule for all of them",
        ..Entry::description()
    },
    RANKS_DIFFER = Entry {
        code: "ranks.differ",
        cause: "The ranks do not run the same version or the same schedule.",
        fix: "start all ranks from one program with one description and one sharding",
        ..Entry::description()
    },
    RANKS_GONE = Entry {
        code: "ranks.gone",
        cause: "A rank has ended.",
        needed: "all ranks until the last exchange",
        fix: "read its log, then make a new communicator with the ranks that remain or with a new one in its place",
        ..Entry::description()
    },
    RANKS_LATE = Entry {
        code: "ranks.late",
        cause: "A rank has not come to an exchange within the deadline.",
        needed: "all ranks within the deadline",
        fix: "look for what holds it up, or give a longer deadline; then make a new communicator",
        ..Entry::description()
    },
    RANKS_LONG = Entry {
        code: "ranks.long",
        cause: "A message between ranks is longer than the store in which they meet carries.",
        needed: "at most 256 MiB in a message, and 64 KiB in its name",
        fix: "send it in parts, or between GPUs over NCCL; then make a new communicator",
        ..Entry::description()
    },
    RANKS_SECRET = Entry {
        code: "ranks.secret",
        cause: "Ranks that meet over a network have no secret, a bad one, or different ones.",
        field: "environment",
        needed: "one secret of 16 to 1024 printable characters for all ranks; none on one machine's loopback",
        fix: "make one with `openssl rand -hex 32`, and give it to every rank in QKVAULT_RANKS_SECRET, in a file of mode \
              600 that QKVAULT_RANKS_SECRET_FILE names, or by World::with_secret",
        ..Entry::description()
    },
    RANKS_ADDRESS = Entry {
        code: "ranks.address",
        cause: "The environment does not tell which rank this is, how many there are, or where they meet.",
        field: "environment",
        needed: "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or the variables of Slurm or MPI",
        fix: "start the program with torchrun, srun or mpirun, or give the world in code",
        ..Entry::description()
    },
    NCCL_LIBRARY = Entry {
        code: "nccl.library",
        cause: "libnccl.so.2 is not found, cannot be loaded or is too old.",
        field: "NCCL",
        needed: "NCCL 2.18 or newer",
        fix: "install NCCL (pip install nvidia-nccl-cu13), or name its folder in LD_LIBRARY_PATH or QKVAULT_NCCL",
        ..Entry::description()
    },
    NCCL_CALL = Entry {
        code: "nccl.call",
        cause: "A call of NCCL has failed.",
        field: "NCCL",
        fix: "set NCCL_DEBUG=WARN and read its log; then make a new communicator",
        ..Entry::description()
    },
];
