"""Where experience goes: from those who act to those who learn."""
