"""``python -m lastwrite.cli``"""

from lastwrite.cli import main

main()
