// What could not be written once the training was done. The results and the checkpoint are there, so
// those errors wait until the results have been printed.
#pragma once

#include <string>
#include <vector>

#include "tautline/base/error.h"

namespace tautline::train {

/// Sentences, such as "cannot write runs/a/report.html: No space left on device".
using Unwritten = std::vector<std::string>;

/// Calls `write`; a user's error of it joins the list.
template <class Write>
void keep_going(Unwritten& unwritten, Write write) {
  try {
    write();
  } catch (const UserError& error) {
    unwritten.emplace_back(error.what());
  }
}

}  // namespace tautline::train
