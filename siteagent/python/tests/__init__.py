
import faulthandler

# A test that hangs says where, instead of holding up whoever waits for it.
faulthandler.dump_traceback_later(1800, exit=True)
