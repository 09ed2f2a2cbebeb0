"""What RocketMQ needs beside compaction: dispatch, restore, cut."""
