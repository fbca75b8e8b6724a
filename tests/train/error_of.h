// The sentence of a user's error.
#pragma once

#include <string>

#include "tautline/base/error.h"

namespace tautline {

/// What `call` throws as a UserError; empty: nothing.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace tautline
