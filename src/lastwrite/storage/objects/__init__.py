"""Object stores, as folders or buckets, in which archives are stored."""
