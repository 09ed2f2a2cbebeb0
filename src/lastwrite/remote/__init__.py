"""The only place that talks to the network: asking live brokers for what no file here has, and sending to them."""
