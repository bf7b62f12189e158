atlas.start();
