"""Why a partition is as it is, by the steps of a round that writes nothing."""
