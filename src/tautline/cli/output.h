// Standard output, checked: a result that did not arrive is an error, not a success in silence.
#pragma once

namespace tautline::cli {

/// After a verb: what it printed has left this process. Errors: it could not be written (a full
/// device, a closed descriptor). A terminal that was closed (SIGHUP) is none: nobody reads there.
void finish_output();

}  // namespace tautline::cli
