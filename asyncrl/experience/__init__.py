"""Where experience goes: from actors to learners."""
