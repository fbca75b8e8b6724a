// "Did you mean ...?": the valid name nearest to what was written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tautline {

/// Edits (insert, delete, replace, swap of neighbours) that turn one word into the other.
int edit_distance(std::string_view a, std::string_view b);

/// The valid name that `written` most likely stands for: another word for the same (gpu, cuda), or
/// one spelt alike. Empty when none is near (more than a third of its letters wrong and no prefix of
/// the other).
std::string nearest_name(std::string_view written, const std::vector<std::string>& valid);

/// "; did you mean 'x'?" or "; valid: a, b, c", to end a sentence about an unknown name.
std::string suggestion(std::string_view written, const std::vector<std::string>& valid);

/// "; did you mean 'x'? (valid: a, b, c)", or without the question: where the valid names are few
/// and all of them worth reading.
std::string choice_suggestion(std::string_view written, const std::vector<std::string>& valid);

/// "a, b, c".
std::string joined(const std::vector<std::string>& words, std::string_view between = ", ");

}  // namespace tautline
