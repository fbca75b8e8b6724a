// A flag that says the same as a key of the run: it overrules the file, but not a --set.
#pragma once

#include <string>

#include "tautline/base/config.h"
#include "tautline/base/error.h"

namespace tautline::cli {

/// `flag` where it was given (an empty T: it was not), else what the run says. Errors: a --set of
/// the same key that wishes for something else.
template <class T>
T flag_or_run(const std::string& name, const T& flag, const T& of_run, const Where* where) {
  if (flag == T{}) return of_run;
  if (where && where->from_set() && of_run != T{} && of_run != flag)
    throw user_error(name, " ", flag, " and ", where->text(),
                     " say different things; leave one of them out");
  return flag;
}

}  // namespace tautline::cli
